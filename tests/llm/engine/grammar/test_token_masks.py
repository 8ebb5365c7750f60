"""bad_words and allowed_token_ids. The oracle is transformers' own generation, on the same weights."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from apps.llm.api import Sampling
from apps.llm.engine.grammar.token_masks import AllowedTokens
from apps.llm.text import Engine
from apps.llm.text_api import SamplingParams
from tests.llm.engine.asking import read

Load = Callable[..., Engine]
PROMPT = "the quick brown fox jumps over the lazy dog; the days"


def generated(llama: Path, prompt: list[int], **options: object) -> list[int]:
    model = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)
    settings = {"max_new_tokens": 24, "do_sample": False, "eos_token_id": None, **options}
    return model.generate(torch.tensor([prompt]), **settings)[0, len(prompt) :].tolist()


def answered(engine: Engine, prompt: list[int], **fields: object) -> list[int]:
    params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True, **fields)  # type: ignore[arg-type]
    return [token for output in read(engine.submit(prompt, params))[0] for token in output.token_ids]


@pytest.mark.slow
@pytest.mark.parametrize("drafts", ["ngram", "off"])
def test_bad_words_are_those_of_transformers(load: Load, llama: Path, drafts: str) -> None:
    engine = load(speculation=drafts)
    prompt, words = engine.tokenizer.encode(PROMPT), []
    for _ in range(4):  # what would come next is bad, one word more each time
        ids = [list(p) for word in words for p in _phrases(engine, word)]
        expected = generated(llama, prompt, bad_words_ids=ids) if ids else generated(llama, prompt)
        found = answered(engine, prompt, bad_words=words)
        assert found == expected, words
        words.append(next(word for n in (3, 2, 4, 1) if (word := _word(engine, found, n)) and word not in words))
    assert any(len(p) > 1 for word in words for p in _phrases(engine, word)), "some words have several tokens"


def _phrases(engine: Engine, word: str) -> list[tuple[int, ...]]:
    """As vLLM has them: the word's tokens, and those after a space if the first is another one."""
    first, spaced = (tuple(engine.tokenizer.encode_suffix(text)) for text in (word, " " + word.lstrip()))
    return [first, spaced] if len(first) == len(spaced) and first[0] != spaced[0] else [first]


def _word(engine: Engine, answer: list[int], length: int) -> str:
    """A text of so many tokens in the answer; empty if there is none that has the same tokens alone."""
    for at in range(len(answer) - length):
        word = engine.tokenizer.decode(answer[at : at + length])
        if word.strip() and engine.tokenizer.encode_suffix(word) == answer[at : at + length]:
            return word
    return ""


def test_allowed_tokens(load: Load, llama: Path) -> None:
    engine = load()
    prompt, allowed = engine.tokenizer.encode(PROMPT), list(range(40, 300, 7))
    others = [[token] for token in range(320) if token not in allowed]
    assert answered(engine, prompt, allowed_token_ids=allowed) == generated(llama, prompt, bad_words_ids=others)


def test_nothing_is_left(load: Load) -> None:
    engine = load()
    (token,) = engine.tokenizer.encode_suffix("e")
    (output,) = engine.submit("x", SamplingParams(max_tokens=3, allowed_token_ids=[token], bad_words=["e"]))
    assert (output.finish_reason, output.at_fault, output.token_ids) == ("error", "allowed_token_ids", ())


def test_masks_end_with_the_vocabulary(load: Load) -> None:
    banned = load().prompts.banned(SamplingParams(bad_words=["the quick"]))
    for vocab in (300, 320):
        words = AllowedTokens.of(Sampling(seed=0, banned=banned), vocab)
        assert words is not None and words.phrases
        *before, last = words.phrases[0]
        (mask,) = words.within([None], [5, *before], [])
        assert mask is not None
        bits = np.unpackbits(mask.view(np.uint8), bitorder="little")
        assert bits.sum() == vocab - 1 and not bits[last] and not bits[vocab:].any()
        assert words.within([None, None], [5], [*before[:1]])[0] is None
