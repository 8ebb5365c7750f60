"""Weights of prompts, and where a long one is divided, as AUTOMATIC1111 has them.

`automatic1111_prompts.json` was written by running its own code (`parse_prompt_attention` of modules/prompt_parser.py,
`tokenize_line` of modules/sd_hijack_clip.py, with 75 letters to a chunk for tokens): of each prompt the parts with
their weights, and the chunks, each as runs of one weight. Prompts are its doctests', by hand, and drawn at random.
"""

import itertools
import json
from pathlib import Path

import pytest

from apps.stable_diffusion.engine.conditioning.chunks import PromptChunk, WeightedTokens, chunked
from apps.stable_diffusion.engine.conditioning.emphasis import MAX_DEPTH, weighted_parts

CASES = json.loads(Path(__file__).with_name("automatic1111_prompts.json").read_text())


def runs(chunk: PromptChunk) -> list[tuple[str, float]]:
    groups = itertools.groupby(zip(chunk.ids, chunk.weights), key=lambda each: each[1])
    return [("".join(chr(token) for token, _ in group), weight) for weight, group in groups]


def letters(prompt: str, most: int = 100) -> tuple[list[PromptChunk], list[int]]:
    """Chunks of a prompt whose tokens are its letters."""
    parts = weighted_parts(prompt)
    tokens = [WeightedTokens([ord(each) for each in part.text], part.weight, part.begins_chunk) for part in parts]
    return chunked(tokens, 75, most, ord(","))


@pytest.mark.parametrize("case", CASES, ids=[case["prompt"][:30] or "empty" for case in CASES])
def test_as_automatic1111(case: dict) -> None:
    expected, breaks = [], False
    for text, weight in case["parts"]:
        if (text, weight) == ("BREAK", -1):
            breaks = True
            continue
        expected.append((text, pytest.approx(weight), breaks))
        breaks = False
    found = [(part.text, part.weight, part.begins_chunk) for part in weighted_parts(case["prompt"])]
    assert found == ([] if case["parts"] == [["", 1.0]] else expected)
    chunks, dropped = letters(case["prompt"])
    assert [runs(chunk) for chunk in chunks] == [
        [(text, pytest.approx(weight)) for text, weight in chunk] for chunk in case["chunks"]
    ]
    assert dropped == []


def test_what_there_is_no_room_for() -> None:
    prompt = "x" * 70 + "," + "y" * 10
    [first, second], dropped = letters(prompt, most=2)
    assert (len(first), len(second), dropped) == (71, 10, [])
    [only], dropped = letters(prompt, most=1)
    assert len(only) == 75 and len(dropped) == 6, "in the last chunk nothing moves: it would be lost"
    [only], dropped = letters("a BREAK b", most=1)
    assert (len(only), dropped) == (1, [ord("b")])


def test_a_break_in_brackets_is_one() -> None:
    """A word there, of weight -1.1, which nobody can have meant."""
    assert [runs(chunk) for chunk in letters("(a BREAK b:1.2)")[0]] == [[("a", 1.2)], [("b", 1.2)]]


@pytest.mark.parametrize(
    "prompt, says",
    [
        ("a (red:1.2.3) b", "'1.2.3' is no number"),
        ("a (red:.) b", "'.' is no number"),
        ("a (red:1000)", "'red' weighs 1000; it can be -100 to 100"),
        ("(" * 60 + "a", "'a' weighs 304"),
        ("a" + "([" * MAX_DEPTH, f"more than {MAX_DEPTH} brackets"),
    ],
)
def test_what_cannot_be_read(prompt: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        weighted_parts(prompt)
