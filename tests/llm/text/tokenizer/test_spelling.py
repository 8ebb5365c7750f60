"""Tokens in words: joined, they are the text. The oracles are the tokenizers library's decoding, and UTF-8."""

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from apps.llm.text.tokenizer.model_tokenizer import ModelTokenizer

TEXT = "The quick, brown fox 🦊 says: na\u00efve \u65e5\u672c."
WORDS = [
    "\u2581The",
    "\u2581quick",
    ",",
    "\u2581brown",
    "\u2581fox",
    "\u2581",
    "\u2581says",
    ":",
    "\u2581na",
    "ve",
    ".",
]


def sentencepiece(replacing: bool) -> ModelTokenizer:
    """As Llama 2's (which drops a text's first space) and Gemma's are: spaces are letters, unknown letters bytes."""
    vocab = ["<unk>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS, *"abcdefghijklmnopqrstuvwxyz\u00efT"]
    pieces = {piece: token for token, piece in enumerate(dict.fromkeys(vocab))}
    merges = []
    for word in WORDS:
        for end in range(2, len(word) + 1):
            pieces.setdefault(word[:end], len(pieces))
            merges.append((word[: end - 1], word[end - 1]))
    tokenizer = Tokenizer(models.BPE(pieces, list(dict.fromkeys(merges)), unk_token="<unk>", byte_fallback=True))
    if replacing:
        tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
    else:
        tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
        )
    tokenizer.add_special_tokens([AddedToken("</s>", special=True)])
    return ModelTokenizer(PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>"))


def metaspace() -> ModelTokenizer:
    """As T5's and the converted tokenizers of transformers are."""
    made = sentencepiece(replacing=False)
    made.fast.normalizer = normalizers.Sequence([])
    made.fast.pre_tokenizer = pre_tokenizers.Metaspace()
    made.fast.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()])
    return made


MAKERS = {
    "llama2": lambda: sentencepiece(False),
    "gemma": lambda: sentencepiece(True),
    "metaspace": metaspace,
    "bytes": lambda: ModelTokenizer.of_bytes(300),
}


@pytest.mark.parametrize("kind", MAKERS)
def test_tokens_in_words_are_the_text(kind: str) -> None:
    tokenizer = MAKERS[kind]()
    ids = tokenizer.encode_suffix(TEXT)
    assert tokenizer.decode(ids) == TEXT and len(ids) < len(TEXT.encode()) + 2
    assert b"".join(map(tokenizer.token_bytes, ids)).decode().removeprefix(" ") == TEXT
    whole = [token for token in ids if "\ufffd" not in tokenizer.token_text(token)]
    assert all(tokenizer.token_bytes(token) == tokenizer.token_text(token).encode() for token in whole)
    assert len(ids) - len(whole) >= 4 + 6, "the fox and the last two letters are in pieces"
    if kind != "bytes":
        assert tokenizer.token_text(tokenizer.fast.token_to_id("\u2581quick")) == " quick"


@pytest.mark.parametrize("kind", MAKERS)
def test_where_each_token_of_a_text_begins(kind: str) -> None:
    tokenizer = MAKERS[kind]()
    ids = [*tokenizer.encode_suffix(TEXT), 1]
    begin = 0
    for i, shown in enumerate(tokenizer.shown(ids)):
        spelt = b"".join(map(tokenizer.token_bytes, ids[:i]))
        assert begin == len(spelt.decode(errors="ignore").removeprefix(" ")), "the whole characters before it"
        begin += shown
    assert begin == len(TEXT), "the last one has no text"
    assert tokenizer.token_text(1) in ("</s>", " </s>")
