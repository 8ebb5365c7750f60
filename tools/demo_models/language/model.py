"""A Llama decoder in plain JAX, small enough to train on a laptop, and its Hugging Face files.

This is the training side: whole sequences in, logits out, no cache. The serving engine
loads the same files.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from safetensors.numpy import load_file, save_file

Params = dict[str, jax.Array]
Matmul = Callable[[jax.Array, jax.Array], jax.Array]
"""(x [rows, in], weight [out, in]) -> [rows, out]."""


def exact(x: jax.Array, w: jax.Array) -> jax.Array:
    """x [rows, in] times w [out, in], in float32."""
    return _dot(x, w, 1, 1)


@jax.custom_vjp
def fast(x: jax.Array, w: jax.Array) -> jax.Array:
    """Like `exact`, with operands rounded to bfloat16 and float32 sums; gradients likewise.

    XLA runs only two-dimensional dots of this kind on a CPU's matrix units (AMX), several times as fast as float32;
    dots with bfloat16 results or more dimensions do not get there.
    """
    return _dot(_half(x), _half(w), 1, 1)


def _half(x: jax.Array) -> jax.Array:
    return x.astype(jnp.bfloat16)


def _dot(x: jax.Array, y: jax.Array, of_x: int, of_y: int) -> jax.Array:
    contracted = (((of_x,), (of_y,)), ((), ()))
    return jax.lax.dot_general(x, y, contracted, preferred_element_type=jnp.float32)


def _fast_forward(x, w):
    x, w = _half(x), _half(w)
    return _dot(x, w, 1, 1), (x, w)


def _fast_backward(kept, dy):
    x, w = kept
    dy = _half(dy)
    return _dot(dy, w, 1, 0), _dot(dy, x, 0, 0)


fast.defvjp(_fast_forward, _fast_backward)


def orthogonalised(x: jax.Array) -> jax.Array:
    """Approximately the nearest matrix to `x` [rows, columns] whose singular values are all one.

    Five Newton-Schulz iterations with Muon's coefficients, which bring the values between 0.7 and 1.2 or so.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    if x.shape[0] > x.shape[1]:
        return orthogonalised(x.T).T
    x = x / (jnp.linalg.norm(x) + 1e-7)
    for _ in range(5):
        gram = fast(x, x)
        factor = b * gram + c * fast(gram, gram)  # gram is symmetric: times its transpose is times itself
        x = a * x + _dot(_half(factor), _half(x), 1, 0)
    return x


@dataclass(frozen=True)
class ModelConfig:
    """Sizes of a Llama decoder with tied embeddings, named as in its config.json."""

    vocab_size: int = 2048
    hidden_size: int = 256
    intermediate_size: int = 512
    num_hidden_layers: int = 4
    num_attention_heads: int = 8
    num_key_value_heads: int = 2
    head_dim: int = 32
    max_position_embeddings: int = 1024
    rope_theta: float = 10000.0
    rms_norm_eps: float = 1e-5


@dataclass(frozen=True)
class Weight:
    """One parameter: shape as used here, initial standard deviation (None: ones), HF name.

    Parameters of layers have a leading [layers] axis here and are one HF tensor for each layer;
    matrices are [out, in] in both.
    """

    shape: tuple[int, ...]
    std: float | None
    hf_name: str


def weights(config: ModelConfig) -> dict[str, Weight]:
    """Every parameter of the decoder, declared once: init, saving and loading follow from it."""
    c, n = config, config.num_hidden_layers
    d, f = c.hidden_size, c.intermediate_size
    q, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    layer = "model.layers.{}."
    into = 0.02
    out = into / (2 * n) ** 0.5  # the residual stream adds 2 * layers of these (GPT-2's rule)
    return {
        "embed": Weight((c.vocab_size, d), into, "model.embed_tokens.weight"),
        "final_norm": Weight((d,), None, "model.norm.weight"),
        "attn_norm": Weight((n, d), None, layer + "input_layernorm.weight"),
        "wq": Weight((n, q, d), into, layer + "self_attn.q_proj.weight"),
        "wk": Weight((n, kv, d), into, layer + "self_attn.k_proj.weight"),
        "wv": Weight((n, kv, d), into, layer + "self_attn.v_proj.weight"),
        "wo": Weight((n, d, q), out, layer + "self_attn.o_proj.weight"),
        "mlp_norm": Weight((n, d), None, layer + "post_attention_layernorm.weight"),
        "gate": Weight((n, f, d), into, layer + "mlp.gate_proj.weight"),
        "up": Weight((n, f, d), into, layer + "mlp.up_proj.weight"),
        "down": Weight((n, d, f), out, layer + "mlp.down_proj.weight"),
    }


def init_params(config: ModelConfig, key: jax.Array) -> Params:
    """Random float32 parameters; the same key gives the same parameters."""
    params = {}
    for i, (name, weight) in enumerate(weights(config).items()):
        if weight.std is None:
            params[name] = jnp.ones(weight.shape)
        else:
            draw = jax.random.normal(jax.random.fold_in(key, i), weight.shape)
            params[name] = draw * weight.std
    return params


def hidden_states(
    params: Params,
    config: ModelConfig,
    tokens: jax.Array,
    positions: jax.Array,
    segments: jax.Array,
    matmul: Matmul,
) -> jax.Array:
    """The last layer's output for tokens [batch, seq]: [batch * seq, hidden].

    `positions` [batch, seq] restart at 0 in every document; a token attends to earlier tokens
    with the same number in `segments` [batch, seq], so packed documents do not attend to
    each other.
    """
    seq = tokens.shape[1]
    causal = jnp.tril(jnp.ones((seq, seq), bool))
    mask = causal & (segments[:, :, None] == segments[:, None, :])  # [batch, query, key]
    cos, sin = _rope(config, positions)
    x = params["embed"][tokens.reshape(-1)]
    # Unrolled: this few layers compile in seconds either way.
    for n in range(config.num_hidden_layers):
        layer = {name: value[n] for name, value in params.items() if name not in OUTER}
        x = x + _attention(config, layer, _norm(x, layer["attn_norm"], config), cos, sin, mask, matmul)
        x = x + _mlp(layer, _norm(x, layer["mlp_norm"], config), matmul)
    return x


def logits_of(params: Params, config: ModelConfig, hidden: jax.Array, matmul: Matmul) -> jax.Array:
    """Logits [rows, vocab] of hidden states [rows, hidden]."""
    return matmul(_norm(hidden, params["final_norm"], config), params["embed"])


def forward(params: Params, config: ModelConfig, tokens, positions, segments, matmul: Matmul = exact) -> jax.Array:
    """Logits [batch, seq, vocab] of tokens [batch, seq]; see `hidden_states`."""
    hidden = hidden_states(params, config, tokens, positions, segments, matmul)
    return logits_of(params, config, hidden, matmul).reshape(*tokens.shape, -1)


OUTER = ("embed", "final_norm")


def _norm(x: jax.Array, scale: jax.Array, config: ModelConfig) -> jax.Array:
    mean_square = jnp.mean(jnp.square(x), axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(mean_square + config.rms_norm_eps) * scale


def _rope(config: ModelConfig, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
    half = config.head_dim // 2
    frequency = config.rope_theta ** (-jnp.arange(half) / half)
    angle = positions[:, None, :, None] * frequency  # [batch, 1, seq, head_dim / 2]
    return jnp.cos(angle), jnp.sin(angle)


def _rotate(x: jax.Array, cos: jax.Array, sin: jax.Array) -> jax.Array:
    # Pairs are (i, i + head_dim / 2), as in transformers, not (2i, 2i + 1).
    a, b = jnp.split(x, 2, axis=-1)
    return jnp.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)


def _attention(config, layer, x, cos, sin, mask, matmul) -> jax.Array:
    batch, seq = mask.shape[:2]
    kv, group = config.num_key_value_heads, config.num_attention_heads // config.num_key_value_heads

    def heads(w: jax.Array) -> jax.Array:  # [batch, heads, seq, head_dim]
        return matmul(x, w).reshape(batch, seq, -1, config.head_dim).transpose(0, 2, 1, 3)

    q = _rotate(heads(layer["wq"]), cos, sin).reshape(batch, kv, group * seq, config.head_dim)
    k, v = _rotate(heads(layer["wk"]), cos, sin), heads(layer["wv"])
    # Batched dots this small are as fast in float32.
    scores = jnp.einsum("bkqd,bksd->bkqs", q, k) * config.head_dim**-0.5
    scores = scores.reshape(batch, kv, group, seq, seq)
    scores = jnp.where(mask[:, None, None], scores, -1e9)
    p = jax.nn.softmax(scores, axis=-1).reshape(batch, kv, group * seq, seq)
    out = jnp.einsum("bkqs,bksd->bkqd", p, v).reshape(batch, -1, seq, config.head_dim)
    return matmul(out.transpose(0, 2, 1, 3).reshape(batch * seq, -1), layer["wo"])


def _mlp(layer, x, matmul) -> jax.Array:
    return matmul(jax.nn.silu(matmul(x, layer["gate"])) * matmul(x, layer["up"]), layer["down"])


def _hf_tensors(config: ModelConfig) -> Iterator[tuple[str, int | None, str]]:
    """(parameter, layer or None, HF tensor name) for each tensor of the files."""
    for name, weight in weights(config).items():
        layers = range(config.num_hidden_layers) if "{}" in weight.hf_name else (None,)
        for n in layers:
            yield name, n, weight.hf_name.format(n)


def save_weights(folder: Path, config: ModelConfig, params: Params) -> None:
    """Writes `folder`/model.safetensors in bfloat16, in the Hugging Face Llama layout."""
    tensors = {}
    for name, n, hf_name in _hf_tensors(config):
        value = np.asarray(params[name].astype(jnp.bfloat16))
        value = value if n is None else value[n]
        tensors[hf_name] = np.ascontiguousarray(value)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def load_model(folder: Path) -> tuple[ModelConfig, Params]:
    """The config and the parameters, in float32, of a folder that `train.py` wrote."""
    hf = json.loads((folder / "config.json").read_text())
    config = ModelConfig(**{name: hf[name] for name in ModelConfig.__dataclass_fields__})
    tensors = load_file(folder / "model.safetensors")
    layers: dict[str, list[np.ndarray]] = {}
    for name, _, hf_name in _hf_tensors(config):
        layers.setdefault(name, []).append(tensors[hf_name].astype(np.float32))
    declared = weights(config)
    return config, {name: jnp.asarray(np.stack(parts).reshape(declared[name].shape)) for name, parts in layers.items()}
