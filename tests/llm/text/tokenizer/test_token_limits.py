"""Tokenizing beside others: the ids are those of the library's ordinary call, and what is refused unread is too long.

The oracle is `Tokenizer.encode`, over tokenizers of all kinds and any text, special tokens included.
"""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

from apps.llm.api import PromptTooLong
from apps.llm.text.tokenizer import model_tokenizer as module
from apps.llm.text.tokenizer.limits import TokenLimit
from apps.llm.text.tokenizer.longest_token import longest_token
from apps.llm.text.tokenizer.model_tokenizer import ModelTokenizer
from ray_configs.llm import DEMO_MODEL

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)
WORDS = ["the quick brown fox jumps", "        over the lazy", "12345 été e\u0301 naïve", "----------", "aaaa" * 9] * 9
SPECIAL = ["<|begin|>", "<|end|>"]
UNKNOWN = ["[U]"]


def byte_level(normalizer: Any = None, regex: str | None = LLAMA3) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizer
    byte = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    split = [] if regex is None else [pre_tokenizers.Split(Regex(regex), "isolated")]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, byte])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(
        WORDS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, special_tokens=SPECIAL)
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="<|begin|> $A", special_tokens=[("<|begin|>", 0)])
    return tokenizer


def pieces_of_sentences() -> Tokenizer:
    """As Llama 2's and Gemma's: spaces as ▁, bytes for what is unknown."""
    vocab = {token: i for i, token in enumerate(["<unk>", *SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256))])}
    for word in ("▁", "t", "h", "e", "▁t", "▁th", "▁the", "▁▁", "▁▁▁▁", "a", "aa", "aaaa"):
        vocab[word] = len(vocab)
    merges = [("▁", "t"), ("▁t", "h"), ("▁th", "e"), ("▁", "▁"), ("▁▁", "▁▁"), ("a", "a"), ("aa", "aa")]
    tokenizer = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(SPECIAL)
    return tokenizer


def trained(model: Any, trainer: Any) -> Tokenizer:
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.train_from_iterator(WORDS, trainer)
    return tokenizer


def changed(**settings: Any) -> Tokenizer:
    tokenizer = byte_level()
    for name, value in settings.items():
        setattr(tokenizer, name, value)
    return tokenizer


def with_token(**token: bool) -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.add_tokens([AddedToken("<mask>", **token)])
    return tokenizer


def cut_short() -> Tokenizer:
    tokenizer = byte_level()
    tokenizer.enable_truncation(8)
    return tokenizer


BOUNDED = {
    "bytes": ModelTokenizer.of_bytes(400).fast,
    "demo": ModelTokenizer.of_folder(str(DEMO_MODEL)).fast,
    "llama 3": byte_level(),
    "qwen": byte_level(normalizers.NFC()),
    "no split": byte_level(regex=None),
    "llama 2": pieces_of_sentences(),
}
UNBOUNDED = {
    "words": trained(
        models.WordPiece(unk_token="[U]"), trainers.WordPieceTrainer(vocab_size=90, special_tokens=["[U]"])
    ),
    "unigram": trained(
        models.Unigram(), trainers.UnigramTrainer(vocab_size=90, unk_token="[U]", special_tokens=["[U]"])
    ),
    "stripped": changed(normalizer=normalizers.Strip()),
    "one space": changed(normalizer=normalizers.Replace(Regex(r"\s+"), " ")),
    "removed": changed(pre_tokenizer=pre_tokenizers.Split(" ", "removed")),
    "spaces": changed(pre_tokenizer=pre_tokenizers.WhitespaceSplit()),
    "token takes spaces": with_token(lstrip=True),
    "truncated": cut_short(),
}
ALL = BOUNDED | UNBOUNDED
PARTS = [*WORDS, *SPECIAL, "\n\n", " " * 40, "\U0001f469\u200d\U0001f467", "e\u0301" * 9, "<mask>"]
TEXT = st.lists(st.text(max_size=9) | st.sampled_from(PARTS), max_size=9).map("".join)


def model_tokenizer(name: str) -> ModelTokenizer:
    return ModelTokenizer(PreTrainedTokenizerFast(tokenizer_object=ALL[name]))


TOKENIZERS = {name: model_tokenizer(name) for name in ALL}


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=40, deadline=None)
@given(text=TEXT, special=st.booleans())
def test_the_ids_are_the_librarys(name: str, text: str, special: bool) -> None:
    expected = TOKENIZERS[name].fast.encode(text, add_special_tokens=special).ids
    assert TOKENIZERS[name].encode(text, special=special) == expected
    kept = [token for token in expected if token < ALL[name].get_vocab_size()]
    for shown in (True, False):
        assert TOKENIZERS[name].decode(kept, shown) == TOKENIZERS[name].fast.decode(kept, skip_special_tokens=not shown)


@pytest.mark.parametrize("name", BOUNDED)
@settings(max_examples=40, deadline=None)
@given(text=TEXT)
def test_no_token_is_longer_than_said(name: str, text: str) -> None:
    longest = TOKENIZERS[name].longest_token
    assert longest is not None
    assert len(text) <= longest * len(TOKENIZERS[name].fast.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("name", UNBOUNDED)
def test_where_it_is_not_sure_nothing_is_said(name: str) -> None:
    assert longest_token(ALL[name]) is None


@pytest.mark.parametrize("name", ALL)
@settings(max_examples=30, deadline=None)
@given(text=TEXT, times=st.integers(1, 40), limit=st.integers(1, 60))
def test_what_is_too_long_is_refused_and_nothing_else(name: str, text: str, times: int, limit: int) -> None:
    text *= times
    expected = TOKENIZERS[name].fast.encode(text).ids
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module, "PIECE", 64)
        try:
            assert TOKENIZERS[name].encode(text, TokenLimit(limit)) == expected and len(expected) <= limit
        except PromptTooLong:
            assert len(expected) > limit


def test_little_of_a_long_text_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    encoding = ModelTokenizer._encoding

    def counting(self: ModelTokenizer, text: str, special: bool) -> Any:
        read.append(len(text))
        return encoding(self, text, special)

    monkeypatch.setattr(ModelTokenizer, "_encoding", counting)
    with pytest.raises(PromptTooLong, match="characters"):
        TOKENIZERS["llama 3"].encode("x" * 31_000_000, TokenLimit(100_000))
    assert not read
    with pytest.raises(PromptTooLong, match="more than"):
        TOKENIZERS["llama 3"].encode("x1" * 1_000_000, TokenLimit(100_000))
    assert sum(read) <= 3 * module.PIECE
    read.clear()

    def leave() -> None:
        if len(read) == 1:
            raise InterruptedError

    with pytest.raises(InterruptedError):
        TOKENIZERS["llama 3"].encode("x1" * 1_000_000, TokenLimit(100_000), going=leave)
    assert len(read) == 1
