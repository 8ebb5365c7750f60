"""The sizes of rooms, from git: of the working tree, and of a revision."""

import subprocess
from pathlib import Path

import pytest

from tools import rooms
from tools.rooms import Size, room_of, size_of


def test_what_counts_in_a_file() -> None:
    """Counted by hand: the docstring; `x` `=` `(` `1` `,` `2` `)`. Blank lines and comments have no tokens."""
    source = b'"""A page.\n\nOf two paragraphs.\n"""\n\n# why\nx = (\n    1,  # why\n\n    2)\n'
    assert size_of(source) == Size(files=1, lines=10, code_lines=4 + 3, tokens=1 + 7)


@pytest.mark.parametrize(
    "path, room",
    [
        ("setup.py", "."),
        ("clients/bench.py", "clients"),
        ("ray_configs/tpu/slices.py", "ray_configs"),
        ("apps/llm/api.py", "apps/llm"),
        ("apps/llm/http/openai/chat.py", "apps/llm/http"),
        ("apps/llm/engine/model/experts/kernel.py", "apps/llm/engine/model"),
        ("tests/llm/http/test_tracing.py", "tests"),
    ],
)
def test_the_room_of_a_file(path: str, room: str) -> None:
    assert room_of(path) == room


def test_what_has_changed_since_a_revision(tmp_path: Path) -> None:
    """A room that grew, a new one that is not committed, one that is gone; what git ignores is no room."""

    def git(*words: str) -> str:
        identity = ("-c", "user.name=T", "-c", "user.email=t@example.com")
        return subprocess.run(
            ["git", *identity, *words], cwd=tmp_path, check=True, capture_output=True, text=True
        ).stdout

    def write(path: str, text: str) -> None:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    git("init", "-q")
    write("clients/a.py", "x = 1\n")
    write("podslice/b.py", "y = 2\n")
    write("notes.md", "no code\n")
    git("add", "-A")
    git("commit", "-qm", "one")
    git("rm", "-q", "podslice/b.py")
    write("clients/a.py", "x = 1\nz = x\n")
    write("kuberay/c.py", "pass\n")
    git("add", "kuberay")
    write("ignored/d.py", "pass\n")
    before, now = rooms.rooms(tmp_path, "HEAD"), rooms.rooms(tmp_path)
    assert before == {"clients": Size(1, 1, 1, 3), "podslice": Size(1, 1, 1, 3)}
    assert now == {"clients": Size(1, 2, 2, 6), "kuberay": Size(1, 1, 1, 1)}
    rows = [line.split() for line in rooms.table(now, before)][1:]
    assert rows == [
        ["podslice", "0", "0", "0", "0.0", "-1", "-3", "-3.0"],
        ["clients", "1", "2", "6", "3.0", "+1", "+3", "+0.0"],
        ["kuberay", "1", "1", "1", "1.0", "+1", "+1", "+1.0"],
    ]
    with pytest.raises(SystemExit, match="no-such-revision"):
        rooms.rooms(tmp_path, "no-such-revision")
