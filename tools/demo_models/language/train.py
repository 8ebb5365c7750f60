"""Makes the demo model: `python -m tools.demo_models.language.train`.

It writes its own text (`documents`), trains a tokenizer and a decoder on it, on a GPU if JAX
has one and otherwise on the CPU, scores it on questions phrased in other ways (`evaluate`), and
writes a Hugging Face folder. The same seed and machine give the same model
if the training ends by steps, not by minutes.
"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
import optax
import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from tokenizers import Tokenizer

from ray_configs.llm import DEMO_MODEL
from tools.demo_models.language.card import write_card
from tools.demo_models.language.cases import heldout_questions
from tools.demo_models.language.documents import documents, questions_of
from tools.demo_models.language.evaluate import measured
from tools.demo_models.language.facts.phrasing import normalise
from tools.demo_models.language.model import (
    ModelConfig,
    Params,
    fast,
    hidden_states,
    init_params,
    logits_of,
    orthogonalised,
    save_weights,
    weights,
)
from tools.demo_models.language.tokenizer import (
    BOS,
    PAD,
    encode_document,
    save_tokenizer,
    stop_ids,
    train_tokenizer,
)

PROMPT_WEIGHT = 0.1  # of the loss on what the user writes, against 1 on the answer


@dataclass(frozen=True)
class TrainConfig:
    """How long and on what to train. A batch has about `tokens` tokens, in rows of equal length."""

    steps: int = 4500
    minutes: float = 80  # of wall time at most; a slower machine takes fewer steps
    tokens: int = 4096
    row: int = 128  # tokens in a row of short documents
    long_row: int = 640  # tokens in a row of long chats
    long_every: int = 20  # steps between batches of long chats
    learning_rate: float = 1e-2
    warmup: int = 60  # steps
    weight_decay: float = 0.05
    tokenizer_texts: int = 40_000  # documents
    seed: int = 0


@dataclass(frozen=True)
class TrainingBatch:
    """Packed documents; every array is [rows, row length]."""

    tokens: np.ndarray
    positions: np.ndarray  # from 0 in each document
    segments: np.ndarray  # the document's number in its row, -1 on padding
    weights: np.ndarray  # loss weight of predicting this token from those before it

    def arrays(self, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """The arguments of `loss_fn`: tokens, positions, segments, scored positions, targets and weights.

        Half of the positions are scored, to save logits: those of answers first, then random ones of prompts.
        """
        following = np.roll(self.tokens.reshape(-1), -1), np.roll(self.weights.reshape(-1), -1)
        draw = following[1] + (following[1] > 0) * rng.random(following[1].size) * PROMPT_WEIGHT
        scored = np.sort(np.argsort(-draw)[: draw.size // 2])
        return self.tokens, self.positions, self.segments, scored, following[0][scored], following[1][scored]


def packed(tokenizer: Tokenizer, config: TrainConfig, long: bool) -> Iterator[TrainingBatch]:
    """An endless stream of batches: documents packed into rows, which are padded."""
    length = config.long_row if long else config.row
    rows = max(1, config.tokens // length)
    pad = tokenizer.token_to_id(PAD)
    bos = tokenizer.token_to_id(BOS)
    rng = random.Random(f"{config.seed}-packing")

    def encoded() -> Iterator[tuple[list[int], list[bool]]]:
        for document in documents(config.seed, long):
            # Leaving out a word can turn a question into another one: drop held-out ones.
            if not heldout_questions().isdisjoint(map(normalise, questions_of(document))):
                continue
            ids, own = encode_document(tokenizer, document)
            if document.raw and rng.random() < 0.5:
                ids, own = ids[1:], own[1:]  # a raw prompt may come without bos
            if long or len(ids) <= length:
                yield ids[:length], own[:length]

    stream = encoded()
    waiting = [next(stream) for _ in range(64)]
    while True:
        shape = (rows, length)
        tokens, positions = np.full(shape, pad, np.int32), np.zeros(shape, np.int32)
        segments, loss = np.full(shape, -1, np.int32), np.zeros(shape, np.float32)
        for row in range(rows):
            at, segment = 0, 0
            while True:
                # The first that fits, so that rows fill up and no document waits forever.
                fits = (i for i, (ids, _) in enumerate(waiting) if at + len(ids) <= length)
                chosen = next(fits, None)
                if chosen is None:
                    break
                ids, own = waiting.pop(chosen)
                waiting.append(next(stream))
                span = slice(at, at + len(ids))
                tokens[row, span], positions[row, span] = ids, np.arange(len(ids))
                segments[row, span] = segment
                loss[row, span] = np.where(own, 1.0, PROMPT_WEIGHT)
                loss[row, at] = 0.0  # nothing comes before it
                at, segment = at + len(ids), segment + 1
        loss[tokens == bos] = 0.0
        yield TrainingBatch(tokens, positions, segments, loss)


def loss_fn(params: Params, config: ModelConfig, tokens, positions, segments, scored, targets, weights) -> jax.Array:
    """Mean cross entropy, in nats for each token, weighted by `weights`.

    `targets` are the tokens after the positions `scored`, which index all rows flattened.
    """
    hidden = hidden_states(params, config, tokens, positions, segments, fast)
    logits = logits_of(params, config, hidden[scored], fast)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
    return jnp.sum(losses * weights) / jnp.sum(weights)


def _muon(momentum: float = 0.95) -> optax.GradientTransformation:
    """Muon: Nesterov momentum, orthogonalised for each matrix of [layers, out, in], scaled like Adam's updates.

    optax has one too; the matrix products of this one are fast on a CPU.
    """

    def update(gradients, trace, params=None):
        trace = jax.tree.map(lambda g, t: momentum * t + g, gradients, trace)
        ahead = jax.tree.map(lambda g, t: momentum * t + g, gradients, trace)
        return jax.tree.map(lambda m: jnp.stack([_scaled(orthogonalised(one)) for one in m]), ahead), trace

    def _scaled(m: jax.Array) -> jax.Array:
        return m * 0.2 * max(m.shape) ** 0.5

    return optax.GradientTransformation(lambda params: jax.tree.map(jnp.zeros_like, params), update)


def _optimizer(config: TrainConfig, model: ModelConfig) -> optax.GradientTransformation:
    """An optimizer whose updates are multiplied by the learning rate and subtracted from the parameters."""
    # Muon on the matrices of the layers, AdamW on the rest. One trial (3 layers of 96, 240 steps, one
    # seed): loss 0.96 with Muon, 1.35 with AdamW, each at its best rate of three and of two tried.
    kinds = {name: "matrix" if len(one.shape) == 3 else "other" for name, one in weights(model).items()}
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.partition({"matrix": _muon(), "other": optax.scale_by_adam(b2=0.98)}, kinds),
        optax.add_decayed_weights(config.weight_decay),
    )


def train(
    config: TrainConfig,
    model: ModelConfig,
    tokenizer: Tokenizer,
    on_step: Callable[[int, float, int], None] = lambda step, loss, tokens: None,
) -> Params:
    """Trains from random weights; calls `on_step(step, loss, tokens in the batch)`."""
    params = init_params(model, jax.random.key(config.seed))
    optimizer = _optimizer(config, model)

    @partial(jax.jit, donate_argnums=(0, 1))
    def step(params, state, rate, *batch):
        loss, gradient = jax.value_and_grad(loss_fn)(params, model, *batch)
        updates, state = optimizer.update(gradient, state, params)
        return jax.tree.map(lambda p, u: p - rate * u, params, updates), state, loss

    state = optimizer.init(params)
    short, long = packed(tokenizer, config, False), packed(tokenizer, config, True)
    rng = np.random.default_rng(config.seed)
    started, warmup = time.monotonic(), max(1, min(config.warmup, config.steps // 4))
    for n in range(config.steps):
        # Up, then down in a straight line to the last step, or to the last minute where that comes first.
        done = max(n / config.steps, (time.monotonic() - started) / 60 / config.minutes)
        if done >= 1:
            break
        rate = np.float32(config.learning_rate * min(1.0, (n + 1) / warmup, 1.02 - done))
        batch = next(long if (n + 1) % config.long_every == 0 else short)
        params, state, loss = step(params, state, rate, *batch.arrays(rng))
        on_step(n + 1, float(loss), int((batch.segments >= 0).sum()))
    return params


def make_tokenizer(config: TrainConfig, vocab_size: int) -> Tokenizer:
    """The tokenizer trained on a sample of the same text, short documents and long."""
    texts = (
        message["content"]
        for long, count in ((False, config.tokenizer_texts), (True, config.tokenizer_texts // 40))
        for document in islice(documents(config.seed, long), count)
        for message in document.messages
    )
    return train_tokenizer(texts, vocab_size)


def save_model(folder: Path, model: ModelConfig, tokenizer: Tokenizer, params: Params) -> None:
    """Writes the Hugging Face files of a Llama model into `folder`, which exists."""
    save_weights(folder, model, params)
    save_tokenizer(folder, tokenizer, model.max_position_embeddings)
    bos, stops = tokenizer.token_to_id(BOS), list(stop_ids(tokenizer))
    pad = tokenizer.token_to_id(PAD)
    ends = {"bos_token_id": bos, "eos_token_id": stops, "pad_token_id": pad}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **asdict(model),
        "hidden_act": "silu",
        "attention_bias": False,
        "mlp_bias": False,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        **ends,
    }
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    generation = {**ends, "do_sample": False, "max_new_tokens": 128}
    (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n")


def _display(config: TrainConfig) -> tuple[Progress, Callable[[int, float, int], None]]:
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.completed}/{task.total}"),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TextColumn("{task.fields[speed]:,.0f} tokens/s"),
        TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
        speed_estimate_period=600, refresh_per_second=1,
    )  # fmt: skip
    task = progress.add_task("training", total=config.steps, loss=0.0, speed=0.0)
    started, seen, mean = time.monotonic(), 0, None

    def on_step(step: int, loss: float, tokens: int) -> None:
        nonlocal seen, mean
        seen += tokens
        mean = loss if mean is None else 0.95 * mean + 0.05 * loss
        speed = seen / (time.monotonic() - started)
        progress.update(task, completed=step, loss=mean, speed=speed)
        if not progress.console.is_terminal and step % 50 == 0:
            print(f"step {step} loss {mean:.4f} {speed:,.0f} tokens/s", flush=True)

    return progress, on_step


def main(
    out: Annotated[Path, typer.Option(help="the folder to write; its files are replaced")] = Path(DEMO_MODEL),
    steps: Annotated[int, typer.Option(help="of the optimizer")] = TrainConfig.steps,
    minutes: Annotated[float, typer.Option(help="most minutes to train")] = TrainConfig.minutes,
    seed: Annotated[int, typer.Option(help="for the text and the weights")] = TrainConfig.seed,
) -> None:
    """Trains the demo model, scores it, and writes it in Hugging Face layout."""
    config, model = replace(TrainConfig(), steps=steps, minutes=minutes, seed=seed), ModelConfig()
    wall, cpu = time.monotonic(), time.process_time()
    tokenizer = make_tokenizer(config, model.vocab_size)
    progress, on_step = _display(config)
    with progress:
        params = train(config, model, tokenizer, on_step)
    training = asdict(config) | {
        "steps": int(progress.tasks[0].completed),
        "wall_minutes": round((time.monotonic() - wall) / 60, 1),
        "cpu_minutes": round((time.process_time() - cpu) / 60, 1),
        "device": jax.devices()[0].platform,
    }
    out.parent.mkdir(parents=True, exist_ok=True)
    # The folder is always complete: everything is written to another one and then moved over.
    with tempfile.TemporaryDirectory(dir=out.parent) as made:
        folder = Path(made)
        save_model(folder, model, tokenizer, params)
        record(folder, training)
        out.mkdir(exist_ok=True)
        for file in folder.iterdir():
            file.chmod(0o644)
            file.replace(out / file.name)


def record(folder: Path, training: dict) -> None:
    """Scores the model in `folder` as it is served, and writes evaluation.json and the card."""
    evaluation = measured(folder)
    recorded = {"evaluation": evaluation, "training": training}
    (folder / "evaluation.json").write_text(json.dumps(recorded, indent=2) + "\n")
    write_card(folder, recorded)
    print("score", evaluation["formats"], "development", evaluation["development"]["score"])


if __name__ == "__main__":
    typer.run(main)
