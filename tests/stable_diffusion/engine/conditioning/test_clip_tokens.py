"""Token ids, what is cut, and the memory of encoded texts."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from apps.stable_diffusion.engine.conditioning.clip_tokens import ClipTokens
from apps.stable_diffusion.engine.conditioning.prompts import PromptText, TextCache, dropped_words
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint

LONG = "a red circle on a blue square and one green cat in two small photo"


def test_both_tokenizers_of_xl(checkpoint: Callable[[str], Path]) -> None:
    tokenizers = ClipTokens(Checkpoint(str(checkpoint("sdxl"))))
    tokens = tokenizers(PromptText("a red circle"))
    first, second = (ids[0].tolist() for ids in tokens.inputs[:2])
    assert tokenizers.lengths == [16, 16] and len(first) == len(second) == 16 and tokens.dropped == ""
    assert first[:5] == second[:5] and first[4] == first[-1] and second[-1] == 0, "each pads as its config says"


def test_words_that_were_dropped(checkpoint: Callable[[str], Path]) -> None:
    tokenizers = ClipTokens(Checkpoint(str(checkpoint("sd1"))))
    dropped = tokenizers(PromptText(LONG)).dropped
    assert dropped.endswith("photo") and LONG.replace(" ", "").endswith(dropped.replace(" ", ""))
    assert dropped_words(tokenizers, {"prompt": PromptText("a cat"), "negative_prompt": PromptText(LONG)}) == (
        f"negative_prompt is longer than the 14 tokens that the model reads; these words were dropped: {dropped}",
    )


@pytest.mark.parametrize("text", ["", "a red circle", LONG, LONG + " " + LONG])
def test_each_text_is_tokenized_once_and_as_the_tokenizer_would_cut_and_pad_it(
    text: str, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizers = ClipTokens(Checkpoint(str(checkpoint("sdxl"))))
    own = [each._tokenizer for each in tokenizers._tokenizers]
    kind = type(own[0])
    expected = [
        one(text, padding="max_length", max_length=length, truncation=True)["input_ids"]
        for one, length in zip(own, tokenizers.lengths)
    ]
    calls, call = [], kind.__call__
    monkeypatch.setattr(kind, "__call__", lambda self, *args, **more: calls.append(args) or call(self, *args, **more))
    for _ in range(3):
        inputs = tokenizers(PromptText(text)).inputs
        assert [ids[0].tolist() for ids in inputs[:2]] == expected and all((each == 1).all() for each in inputs[2:])
        dropped_words(tokenizers, {"prompt": PromptText(text), "negative_prompt": PromptText(text)})
    assert calls == [(text,)] * 2  # by two tokenizers


def test_weights_and_chunks(checkpoint: Callable[[str], Path]) -> None:
    """Of 14 tokens between start and end. Each row pads as its tokenizer, an unused one as a text without words."""
    tokenizers = ClipTokens(Checkpoint(str(checkpoint("sdxl"))), chunks=3)
    assert tokenizers.most == 3 * 14
    text = PromptText("a (red circle:1.5) BREAK [cat] \\(and dog\\)", emphasis=True)
    first, second, weights, again, used = tokenizers(text).inputs
    assert first.shape == second.shape == weights.shape == (3, 16) and used == 2 and (weights == again).all()
    whole = tokenizers._tokenizers[1]._tokenizer
    for row, part in zip(second, ("a red circle", "cat (and dog)", "")):
        assert row.tolist() == whole(part, padding="max_length", max_length=16)["input_ids"]
    assert weights[0, :5].tolist() == [1, 1, 1.5, 1.5, 1] and weights[1, 1] == np.float32(1 / 1.1)
    assert (weights != 1).sum() == 3
    letters = tokenizers(PromptText(text.text)).inputs
    assert letters[-1] == 2 and (letters[2] == 1).all()


def test_memory() -> None:
    made: list[str] = []
    remember = TextCache(lambda text: made.append(text.text) or text.text.upper(), most=2)
    assert [remember(PromptText(text)) for text in ("", "a", "", "b", "", "a")] == ["", "A", "", "B", "", "A"]
    assert made == ["", "a", "b", "a"], "the empty prompt is asked for often and stays"
