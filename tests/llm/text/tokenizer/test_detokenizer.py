"""Text from tokens: whole characters, the spaces that belong, and nothing shown that a stop string takes back."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from apps.llm.text.tokenizer.detokenizer import Detokenizer

ALPHABET = "abthe dog.é€😀\n"


def byte_fallback() -> Tokenizer:
    """As Llama 2's, Mistral's and Gemma's: spaces are part of words, unknown characters are spelt in bytes."""
    words = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "\n", ".", *"abthedogé", "▁the"]
    vocab = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab, [], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens(["<s>", "</s>"])
    return tokenizer


@pytest.fixture(scope="module", params=["byte-level", "byte fallback"])
def tokenizer(request: pytest.FixtureRequest, llama: Path) -> Tokenizer:
    return byte_fallback() if request.param == "byte fallback" else Tokenizer.from_file(str(llama / "tokenizer.json"))


def spell(tokenizer: Tokenizer, text: str) -> list[int]:
    spelt = []
    for char in text.replace(" ", "▁") if tokenizer.token_to_id("<0x00>") else []:
        token = tokenizer.token_to_id(char)
        spelt += [tokenizer.token_to_id(f"<0x{b:02X}>") for b in char.encode()] if token is None else [token]
    return spelt or tokenizer.encode(text, add_special_tokens=False).ids


def stream(tokenizer: Tokenizer, prompt: list[int], answer: list[int], stop: list[str], keep: bool = False):
    """The pieces of text, and the stop string that ended them."""
    detokenizer, pieces = Detokenizer(tokenizer, prompt, stop, keep), []
    for token in answer:
        piece, stopped_by = detokenizer.feed(token)
        pieces.append(piece)
        if stopped_by is not None:
            return pieces, stopped_by
    return [*pieces, detokenizer.flush()], None


texts = st.text(ALPHABET, min_size=1, max_size=20)


@settings(deadline=None, max_examples=200)
@given(prompt=texts, answer=texts)
def test_pieces_make_the_text(tokenizer: Tokenizer, prompt: str, answer: str) -> None:
    prompt = "x" + prompt if tokenizer.token_to_id("x") else "a" + prompt
    pieces, _ = stream(tokenizer, spell(tokenizer, prompt), spell(tokenizer, answer), [])
    assert "".join(pieces) == answer
    assert not any("\ufffd" in piece for piece in pieces), "characters come whole"


@settings(deadline=None, max_examples=300)
@given(
    answer=st.text("ab é", max_size=16),
    stop=st.lists(st.text("ab é", min_size=1, max_size=4), min_size=1, max_size=3),
    keep=st.booleans(),
)
def test_stop_strings(tokenizer: Tokenizer, answer: str, stop: list[str], keep: bool) -> None:
    ends = {len(answer[:i]) for i in range(len(answer) + 1) for s in stop if answer[:i].endswith(s)}
    pieces, stopped_by = stream(
        tokenizer, spell(tokenizer, "ab"), spell(tokenizer, answer) if answer else [], stop, keep
    )
    shown = "".join(pieces)
    if not ends:
        assert (shown, stopped_by) == (answer, None)
        return
    assert stopped_by in stop
    at = len(shown) - (len(stopped_by) if keep else 0)
    assert answer[at:].startswith(stopped_by) and answer.startswith(shown)
    assert not any(s in answer[:at] for s in stop), "the first one counts"
    if not keep:
        assert not any(s in shown for s in stop)


@settings(deadline=None, max_examples=300)
@given(ids=st.lists(st.integers(3, 262), max_size=40), cut=st.integers(0, 20))
def test_any_tokens_at_all(tokenizer: Tokenizer, ids: list[int], cut: int) -> None:
    stream(tokenizer, ids[:cut], ids[cut:], ["never"])


def test_bytes_that_are_no_text_do_not_break_the_stream() -> None:
    tokenizer = byte_fallback()
    ids = [
        3,
        121,
        67,
        78,
        133,
        186,
        172,
        169,
        180,
        144,
        243,
        229,
        243,
        133,
        145,
        172,
        28,
        93,
        198,
        tokenizer.token_to_id("e"),
    ]
    pieces, _ = stream(tokenizer, [], [*ids, *spell(tokenizer, "dog")], [])
    assert "".join(pieces).endswith("dog")
