"""Records what `vllm serve` takes, by version, for `podslice check`: from the text of its `--help=all`.

vllm serve --help=all > help.txt && python -m tools.vllm.options 0.32.0 help.txt
"""

import json
import re
import sys
from pathlib import Path

FILE = Path("kuberay/check/serve/vllm_options.json")
OPTION = re.compile(r"^  (-\S.*?)(?:   .*)?$")
CHOICES = re.compile(r"\{([^{}]*)\}")


def options(text: str) -> dict[str, str | list[str]]:
    """Each option by its name with underscores: `flag`, its choices, or `value`."""
    found: dict[str, str | list[str]] = {}
    for line in text.splitlines():
        if (match := OPTION.match(line)) is None:
            continue
        spellings = match[1].split(", ")
        names = [part.split(" ")[0] for part in spellings if part.startswith("--")]
        if not names or names[0] == "--help":
            continue
        value = spellings[-1].partition(" ")[2] if spellings[-1].startswith("-") else "..."
        choices = CHOICES.fullmatch(value)
        kind: str | list[str] = "flag" if not value else choices[1].split(",") if choices else "value"
        for name in names:
            if not (name.startswith("--no-") and f"--{name[5:]}" in names):
                found[name[2:].replace("-", "_")] = kind
    return dict(sorted(found.items()))


def main(version: str, file: str) -> None:
    recorded = json.loads(FILE.read_text()) if FILE.exists() else {}
    recorded[version] = options(Path(file).read_text())
    FILE.write_text(json.dumps(dict(sorted(recorded.items())), indent=1) + "\n")
    print(f"{FILE}: {', '.join(f'{name}: {len(known)}' for name, known in recorded.items())}")


if __name__ == "__main__":
    main(*sys.argv[1:])
