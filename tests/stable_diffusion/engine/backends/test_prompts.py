"""Token ids, what is cut, and the memory of encoded texts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from apps.stable_diffusion.engine.conditioning.prompts import TextCache, Tokenizers
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint

LONG = "a red circle on a blue square and one green cat in two small photo"


def test_both_tokenizers_of_xl(checkpoint: Callable[[str], Path]) -> None:
    tokenizers = Tokenizers(Checkpoint(str(checkpoint("sdxl"))))
    tokens = tokenizers("a red circle")
    first, second = (ids[0].tolist() for ids in tokens.ids)
    assert tokenizers.lengths == [16, 16] and len(first) == len(second) == 16 and tokens.dropped == ""
    assert first[:5] == second[:5] and first[4] == first[-1] and second[-1] == 0, "each pads as its config says"


def test_words_that_were_dropped(checkpoint: Callable[[str], Path]) -> None:
    tokenizers = Tokenizers(Checkpoint(str(checkpoint("sd1"))))
    dropped = tokenizers(LONG).dropped
    assert dropped.endswith("photo") and LONG.replace(" ", "").endswith(dropped.replace(" ", ""))
    assert tokenizers.warnings(prompt="a cat", negative_prompt=LONG) == (
        f"negative_prompt is longer than the 14 tokens that the model reads; these words were dropped: {dropped}",
    )


@pytest.mark.parametrize("text", ["", "a red circle", LONG, LONG + " " + LONG])
def test_each_text_is_tokenized_once_and_as_the_tokenizer_would_cut_and_pad_it(
    text: str, checkpoint: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizers = Tokenizers(Checkpoint(str(checkpoint("sdxl"))))
    kind = type(tokenizers._tokenizers[0])
    expected = [
        one(text, padding="max_length", max_length=length, truncation=True)["input_ids"]
        for one, length in zip(tokenizers._tokenizers, tokenizers.lengths)
    ]
    calls, call = [], kind.__call__
    monkeypatch.setattr(kind, "__call__", lambda self, *args, **more: calls.append(args) or call(self, *args, **more))
    for _ in range(3):
        assert [ids[0].tolist() for ids in tokenizers(text).ids] == expected
        tokenizers.warnings(prompt=text, negative_prompt=text)
    assert calls == [(text,)] * 2  # by two tokenizers


def test_memory() -> None:
    made: list[str] = []
    remember = TextCache(lambda text: made.append(text) or text.upper(), most=2)
    assert [remember(text) for text in ("", "a", "", "b", "", "a")] == ["", "A", "", "B", "", "A"]
    assert made == ["", "a", "b", "a"], "the empty prompt is asked for often and stays"
