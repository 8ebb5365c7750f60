"""The tokenizer of the captions: CLIP's own kind, lower case and byte-level BPE, with a vocabulary of its own.

Every word of the captions is one token; any other text is split into smaller tokens, at worst single bytes.
"""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import CLIPTokenizer

from tools.demo_models.pictures.scenes import COLORS, PLACES, RADII, RELATIONS, SHAPES

WORD_END = "</w>"
START, END = "<|startoftext|>", "<|endoftext|>"
OTHER_WORDS = ("a", "an", "and", "at", "background", "center", "corner", "drawing", "image", "in", "near", "next", "of",
               "on", "picture", "side", "the", "to", "under")  # fmt: skip


def words() -> list[str]:
    """Every word that a caption can have, sorted."""
    phrases = [*COLORS, *SHAPES, *RADII[1], *RELATIONS, *PLACES, *OTHER_WORDS]
    return sorted({word for phrase in phrases for word in phrase.split()})


def make_tokenizer(length: int) -> CLIPTokenizer:
    """A tokenizer for prompts of `length` tokens, the one at the start and the one at the end among them."""
    merging = Tokenizer(models.BPE(end_of_word_suffix=WORD_END))
    merging.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(
        vocab_size=4000, end_of_word_suffix=WORD_END, initial_alphabet=alphabet, show_progress=False
    )
    merging.train_from_iterator(words() * 10, trainer)
    learned = json.loads(merging.to_str())["model"]
    # CLIP's order: bytes, bytes that end a word, merges, start and end.
    tokens = dict.fromkeys([*alphabet, *(byte + WORD_END for byte in alphabet), *learned["vocab"], START, END])
    return CLIPTokenizer(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=[tuple(merge) for merge in learned["merges"]],
        model_max_length=length,
    )


def save_tokenizer(tokenizer: CLIPTokenizer, folder: Path) -> None:
    """Writes the tokenizer in the newer layout and in the one that transformers before 5 reads."""
    tokenizer.save_pretrained(folder)
    model = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(model["vocab"], ensure_ascii=False) + "\n")
    lines = ["#version: 0.2", *(" ".join(merge) for merge in model["merges"])]
    (folder / "merges.txt").write_text("\n".join(lines) + "\n")
