"""Greedy answers from the training-side decoder: no cache, whole sequences again each token."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from tokenizers import Tokenizer

from apps.llm.demo.evaluate import Answer, Prompt
from apps.llm.demo.model import ModelConfig, Params, forward
from apps.llm.demo.tokenizer import encode_prompt, stop_ids


@partial(jax.jit, static_argnums=1)
def _next_tokens(params, config, tokens, lengths) -> jax.Array:
    """The likeliest next token [batch] of tokens [batch, seq], of which `lengths` are real."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    logits = forward(params, config, tokens, positions, jnp.zeros_like(tokens))
    last = jnp.take_along_axis(logits, lengths[:, None, None] - 1, axis=1)[:, 0]
    return jnp.argmax(last, axis=-1)


def greedy(
    config: ModelConfig,
    params: Params,
    tokenizer: Tokenizer,
    batch: int = 64,
    max_tokens: int = 96,
) -> Answer:
    """A function that answers prompts, the likeliest token each time, until a stop token."""
    stops = stop_ids(tokenizer)

    def answer_some(prompts: list[list[int]]) -> list[list[int]]:
        rows, done = [list(ids) for ids in prompts], [False] * len(prompts)
        for _ in range(max_tokens):
            # A few lengths only, as each is a compilation of its own.
            width = -(-max(map(len, rows)) // 64) * 64
            tokens = np.zeros((batch, width), np.int32)
            for row, ids in zip(tokens, rows, strict=False):
                row[: len(ids)] = ids
            lengths = np.array([*map(len, rows), *[1] * (batch - len(rows))], np.int32)
            chosen = np.asarray(_next_tokens(params, config, tokens, lengths))
            for i, token in enumerate(chosen[: len(rows)]):
                done[i] = done[i] or int(token) in stops
                if not done[i]:
                    rows[i].append(int(token))
            if all(done):
                break
        return [ids[len(prompt) :] for ids, prompt in zip(rows, prompts, strict=True)]

    def answer(prompts: list[Prompt]) -> list[str]:
        encoded = [encode_prompt(tokenizer, prompt) for prompt in prompts]
        # Prompts of about one length together: less padding.
        order = sorted(range(len(encoded)), key=lambda i: len(encoded[i]))
        texts = [""] * len(encoded)
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            for i, ids in zip(chosen, answer_some([encoded[i] for i in chosen]), strict=True):
                texts[i] = tokenizer.decode(ids)
        return texts

    return answer
