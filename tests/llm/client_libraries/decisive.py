"""A random model that closes what it opens: strings, objects and answers end soon, whatever a schema leaves open."""

from pathlib import Path

import torch
import transformers

from tests.llm.engine import tiny_models
from tests.llm.text import chat_models

CONTEXT = 4096
LIKED = {'"': 2.8, "}": 2.0, "</s>": 0.0, "<tool_call>": -9.0}
"""Token -> about what is added to its logits. Calls come only where they must, and one at a time."""


def make(folder: Path) -> transformers.PreTrainedModel:
    """The model, for the tokenizer in that folder."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    model = tiny_models.make("llama3", max_position_embeddings=CONTEXT)
    # Beside this constant in the residual stream the rest of the first dimension is small: its weights are biases.
    constant = 12.0
    after_norm = constant * tiny_models.HIDDEN**0.5 / (constant**2 + tiny_models.HIDDEN) ** 0.5
    with torch.no_grad():
        model.model.embed_tokens.weight[:, 0] = constant
        model.model.norm.weight[0] = 1.0
        model.lm_head.weight[:, 0] = 0.0
        for token, liked in LIKED.items():
            model.lm_head.weight[tokenizer.convert_tokens_to_ids(token), 0] = liked / after_norm
    return model


def save(folder: Path) -> Path:
    """A checkpoint whose chat template has tools."""
    return tiny_models.save(make(chat_models.save(folder, "hermes")), folder)
