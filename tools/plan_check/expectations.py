"""The committed figures, and how others are compared with them."""

import json
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

EXPECTED = Path(__file__).parents[2] / "tests" / "plan" / "expected"
SPARE = 1.02
MOVED_BY_NAMES = {"temporaries_mib": 4.0}
"""No growth up to this is worse: renaming a function alone moved what XLA plans for temporaries by a MiB."""
TIMED = "compile_s"
"""Seconds of CPU; they depend on the machine, so they are shown but not compared."""
Figures = Mapping[str, float]
"""Of one program."""
Kind = Literal["programs", "traced"]
"""What a file of expectations has: figures of compiled programs, and of some that are only traced."""


class NotComparable(Exception):
    """The figures cannot be compared; the message says why and what to do."""


def compiler() -> str:
    """The compiler's version. Raises NotComparable if it is not installed."""
    try:
        return f"jax {version('jax')}, libtpu {version('libtpu')}"
    except PackageNotFoundError as error:
        raise NotComparable(f"{error.name} is not installed: pip install 'jax[tpu]' has the compiler") from error


def expected(name: str, kind: Kind = "programs") -> dict[str, Figures]:
    """The committed figures. Raises NotComparable if there are none, or another compiler made them."""
    file = EXPECTED / f"{name}.json"
    content = json.loads(file.read_text()) if file.exists() else {}
    if kind not in content:
        quick = " --quick" if kind == "traced" else ""
        raise NotComparable(f"there is no {file} with such programs: make it with --write{quick} {name}")
    if content["compiler"] != compiler():
        raise NotComparable(
            f"{file} is for {content['compiler']}, but this is {compiler()}: install those, or --write all first"
        )
    return content[kind]


def write(name: str, found: Mapping[Kind, Mapping[str, Figures]]) -> None:
    """Replace these figures in a file of expectations. Those of another compiler do not stay beside them."""
    EXPECTED.mkdir(exist_ok=True)
    file = EXPECTED / f"{name}.json"
    kept = json.loads(file.read_text()) if file.exists() else {}
    if kept.get("compiler") != compiler():
        kept = {}
    kept |= {"compiler": compiler(), **found}
    ordered = {key: kept[key] for key in ("compiler", "traced", "programs") if key in kept}
    file.write_text(json.dumps(ordered, indent=1) + "\n")


def compare(expected: Mapping[str, Figures], found: Mapping[str, Figures]) -> tuple[list[str], bool]:
    """The changes, one a line, and whether anything got worse. Compile times are not compared."""
    lines, worse = [], False
    for name in sorted(expected.keys() ^ found.keys()):
        lines.append(f"{name}: {'is not expected' if name in found else 'is no longer compiled'}")
        worse = True
    for name in (name for name in found if name in expected):
        for quantity in sorted(expected[name].keys() | found[name].keys()):
            before, now = expected[name].get(quantity, 0), found[name].get(quantity, 0)
            if quantity == TIMED or before == now:
                continue
            is_worse = now > before * SPARE + MOVED_BY_NAMES.get(quantity, 0)
            worse = worse or is_worse
            by = f", {(now / before - 1) * 100:+.1f} %" if before else ""
            lines.append(f"{name}: {quantity} {before:g} -> {now:g}{by}{'  WORSE' if is_worse else ''}")
    return lines, worse
