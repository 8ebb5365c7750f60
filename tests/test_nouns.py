"""Some nouns could mean several things here. Each has one meaning in the product, and rooms where it has it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PRODUCT = ("apps", "clients", "kuberay", "podslice", "ray_configs")

ROOMS_OF = {
    "batches": (  # of OpenAI's API, in whichever room; of the plan, which sizes decode together
        *("apps/llm/batch_api/", "apps/llm/http/app.py", "ray_configs/applications/batches.py"),
        *("apps/plan/llm/", "apps/plan/stable_diffusion/"),
    ),
    "copies": ("apps/llm/text/tokenizer/",),  # of a text; those of a model are DP ranks
    "lockstep": ("apps/llm/engine/hosts/",),  # the hosts of a slice launch the same steps
    "places": ("apps/llm/engine/grammar/",),  # for grammars that have a process; adapters have an index
    "turn": (  # of a conversation; of an engine's loop
        *("apps/llm/chat/", "apps/llm/http/anthropic/", "apps/llm/text/tokenizer/"),
        *("apps/serving/engine_thread.py", "apps/llm/engine/schedule/", "apps/llm/engine/speculation/"),
        "apps/stable_diffusion/engine/",
    ),
    "wishes": (),
}
"""A word of an identifier, and where it may stand."""


def words(name: str) -> list[str]:
    return [word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", name)]


def bound(path: Path) -> Iterator[tuple[int, str]]:
    """What a file names itself: classes, functions, their arguments, fields and attributes."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name) | ast.AnnAssign(target=ast.Name(id=name)):
                yield node.lineno, name
            case ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


NAMED = [
    (str(path.relative_to(ROOT)), line, name)
    for room in PRODUCT
    for path in (ROOT / room).rglob("*.py")
    for line, name in bound(path)
]


@pytest.mark.parametrize("noun", ROOMS_OF)
def test_it_means_one_thing(noun: str) -> None:
    found = [at for at in NAMED if noun in words(at[2])]
    assert [at for at in found if not at[0].startswith(ROOMS_OF[noun])] == []
    unused = [room for room in ROOMS_OF[noun] if not any(at[0].startswith(room) for at in found)]
    assert unused == [], "take these out of the table"


def test_words_of_a_name() -> None:
    assert words("_turn_began") == ["turn", "began"] and words("TurnTimes") == ["turn", "times"]
    assert words("batchesOfHTTP") == ["batches", "of", "http"]
