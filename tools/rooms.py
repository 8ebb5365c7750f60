"""How large each room is: `python -m tools.rooms`, and how much it has grown with `--since REVISION`.

Lines are all of a file's. Tokens are Python's, without comments and what only lays code out; a docstring is one token.
Tokens a line are those of lines that have code: a number that rises says that the code becomes denser, not smaller.
Nothing fails on these numbers: CI prints them, so that growth is seen when it happens.
"""

import argparse
import io
import subprocess
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PARTED = ("apps", "apps/llm", "apps/llm/engine", "apps/stable_diffusion", "kuberay")
"""Folders whose folders are rooms. Any other folder at the top is a room."""
LAYOUT = frozenset(
    {
        *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
        *(tokenize.ENCODING, tokenize.ENDMARKER),
    }
)


@dataclass
class Size:
    """The size of one or several files."""

    files: int = 0
    lines: int = 0
    code_lines: int = 0
    tokens: int = 0

    def add(self, other: "Size") -> None:
        self.files += other.files
        self.lines += other.lines
        self.code_lines += other.code_lines
        self.tokens += other.tokens

    @property
    def density(self) -> float:
        return self.tokens / max(1, self.code_lines)


def size_of(source: bytes) -> Size:
    """The size of a Python file. Raises SyntaxError for what is none."""
    size, with_code = Size(files=1, lines=len(source.splitlines())), set[int]()
    for token in tokenize.tokenize(io.BytesIO(source).readline):
        if token.type not in LAYOUT:
            size.tokens += 1
            with_code.update(range(token.start[0], token.end[0] + 1))
    size.code_lines = len(with_code)
    return size


def room_of(path: str) -> str:
    """The room of a file: `apps/llm/http` of `apps/llm/http/openai/routes.py`, `apps/llm` of `apps/llm/api.py`."""
    parts = path.split("/")[:-1]
    depth = 1
    while depth < len(parts) and "/".join(parts[:depth]) in PARTED:
        depth += 1
    return "/".join(parts[:depth]) or "."


def sources(root: Path, revision: str | None) -> Iterator[tuple[str, bytes]]:
    """The Python files that git has of the working tree, or of a revision, with their paths.

    Raises:
        SystemExit: git has no such revision, with git's words.
    """

    def git(*words: str) -> bytes:
        done = subprocess.run(["git", "-C", str(root), *words], capture_output=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr.decode().strip())
        return done.stdout

    listed = git("ls-tree", "-rz", "--name-only", revision) if revision else git("ls-files", "-z")
    for path in listed.decode().split("\0"):
        if not path.endswith(".py"):
            continue
        if revision:
            yield path, git("cat-file", "blob", f"{revision}:{path}")
        elif (root / path).is_file():  # git also lists what has been deleted since the last commit
            yield path, (root / path).read_bytes()


def rooms(root: Path, revision: str | None = None) -> dict[str, Size]:
    """The size of each room, by name."""
    sizes = dict[str, Size]()
    for path, source in sources(root, revision):
        sizes.setdefault(room_of(path), Size()).add(size_of(source))
    return dict(sorted(sizes.items()))


def together(sizes: dict[str, Size]) -> dict[str, Size]:
    """The rooms, then the product and everything as two more."""
    product, whole = Size(), Size()
    for room, size in sizes.items():
        whole.add(size)
        if not room.startswith(("tests", "tools", "examples", ".")):
            product.add(size)
    return sizes | {"the product": product, "with tests and tools": whole}


def table(now: dict[str, Size], before: dict[str, Size] | None) -> Iterator[str]:
    """The lines to print. A room that is gone comes first, with the size 0."""
    head = f"{'room':<34}{'files':>6}{'lines':>8}{'tokens':>9}{'a line':>7}"
    yield head if before is None else f"{head}{'lines':>10}{'tokens':>9}{'a line':>7}"
    for room in [*sorted((before or {}).keys() - now.keys()), *now]:
        size = now.get(room, Size())
        row = f"{room:<34}{size.files:>6}{size.lines:>8}{size.tokens:>9}{size.density:>7.1f}"
        if before is not None:
            old = before.get(room, Size())
            row += f"{size.lines - old.lines:>+10}{size.tokens - old.tokens:>+9}{size.density - old.density:>+7.1f}"
        yield row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", metavar="REVISION", help="also print what has changed since then")
    since = parser.parse_args().since
    before = None if since is None else together(rooms(ROOT, since))
    print(*table(together(rooms(ROOT)), before), sep="\n")


if __name__ == "__main__":
    main()
