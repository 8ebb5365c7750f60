"""Saxml's LmCloud block written down plainly in float64, apart from the engine, and random checkpoints for it.

By paxml's model_params.py and praxis' layers, as apps/llm/engine/model/families/lm_cloud.py names them.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.families import lm_cloud
from apps.llm.engine.model.families.tiny import tiny

ARCH = replace(tiny(lm_cloud.find("lm_cloud.LmCloudSpmd2BTest"), 4), vocab_size=320)
Weights = dict[str, np.ndarray]


def save(folder: Path, arch: Architecture = ARCH, seed: int = 0) -> Weights:
    """A checkpoint in which every weight matters: scores and logits come near their caps, norms and biases vary."""
    rng = np.random.default_rng(seed)
    attention, mlp = arch.layers[0].mixer, arch.layers[0].mlp.width
    hidden, heads = arch.hidden_size, attention.num_heads * attention.head_dim

    def matrix(out: int, inputs: int, gain: float = 1.0) -> np.ndarray:
        return (rng.normal(size=(out, inputs)) * gain * inputs**-0.5).astype(np.float32)

    def vector(size: int) -> np.ndarray:
        return (rng.normal(size=size) * 0.3).astype(np.float32)

    def norm(name: str) -> Weights:
        return {f"{name}.weight": vector(hidden), f"{name}.bias": vector(hidden)}

    weights = {"model.embed_tokens.weight": matrix(arch.vocab_size, hidden, 3), "lm_head.bias": vector(arch.vocab_size)}
    weights |= norm("model.norm")
    for i in range(arch.num_layers):
        layer = f"model.layers.{i}"
        weights |= norm(f"{layer}.input_layernorm") | norm(f"{layer}.post_attention_layernorm")
        weights |= {f"{layer}.self_attn.{name}_proj.weight": matrix(heads, hidden, 4) for name in "qk"}
        weights[f"{layer}.self_attn.v_proj.weight"] = matrix(heads, hidden)
        weights[f"{layer}.self_attn.o_proj.weight"] = matrix(hidden, heads)
        weights[f"{layer}.mlp.up_proj.weight"] = matrix(mlp, hidden)
        weights[f"{layer}.mlp.up_proj.bias"] = vector(mlp)
        weights[f"{layer}.mlp.down_proj.weight"] = matrix(hidden, mlp)
        weights[f"{layer}.mlp.down_proj.bias"] = vector(hidden)
    save_file(weights, folder / "model.safetensors")
    return weights


def logits(weights: Weights, ids: list[int], arch: Architecture = ARCH) -> np.ndarray:
    """`[tokens, vocab]` of one pass over the whole sequence."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    tokens, hidden, heads = len(ids), arch.hidden_size, arch.layers[0].mixer.num_heads

    def norm(x: np.ndarray, name: str) -> np.ndarray:
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-6)
        return x * (1 + w[f"{name}.weight"]) + w[f"{name}.bias"]

    def cap(x: np.ndarray, limit: float) -> np.ndarray:
        return limit * np.tanh(x / limit)

    def split(x: np.ndarray) -> np.ndarray:
        return x.reshape(tokens, heads, -1).transpose(1, 0, 2)

    timescales = np.exp(np.arange(hidden // 2) * np.log(10000) / (hidden // 2 - 1))
    angles = np.arange(tokens)[:, None] / timescales
    x = w["model.embed_tokens.weight"][ids] * hidden**0.5 + np.concatenate([np.sin(angles), np.cos(angles)], axis=1)
    for i in range(arch.num_layers):
        layer = f"model.layers.{i}"
        y = norm(x, f"{layer}.input_layernorm")
        q, k, v = (split(y @ w[f"{layer}.self_attn.{name}_proj.weight"].T) for name in "qkv")
        scores = cap(q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]), 50)
        scores = np.where(np.tri(tokens, dtype=bool), scores, -np.inf)
        chances = np.exp(scores - scores.max(axis=-1, keepdims=True))
        chances /= chances.sum(axis=-1, keepdims=True)
        seen = (chances @ v).transpose(1, 0, 2).reshape(tokens, -1)
        x = x + seen @ w[f"{layer}.self_attn.o_proj.weight"].T
        y = norm(x, f"{layer}.post_attention_layernorm")
        y = y @ w[f"{layer}.mlp.up_proj.weight"].T + w[f"{layer}.mlp.up_proj.bias"]
        y = 0.5 * y * (1 + np.tanh(np.sqrt(2 / np.pi) * (y + 0.044715 * y**3)))
        x = x + y @ w[f"{layer}.mlp.down_proj.weight"].T + w[f"{layer}.mlp.down_proj.bias"]
    return cap(norm(x, "model.norm") @ w["model.embed_tokens.weight"].T + w["lm_head.bias"], 30)
