"""CLIP's text encoder (Radford et al. 2021) as Stable Diffusion reads it: `CLIPTextModel` and its projecting twin."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp

from apps.stable_diffusion.engine.model.attention import attend
from apps.stable_diffusion.engine.model.checkpoint import needed, refuse_others
from apps.stable_diffusion.engine.model.layers import layer_norm, linear
from apps.stable_diffusion.engine.model.weights import NamedWeights

ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "quick_gelu": lambda x: x * jax.nn.sigmoid(1.702 * x),
    "gelu": partial(jax.nn.gelu, approximate=False),
}


def check(config: Mapping[str, Any], component: str) -> None:
    """Raises CheckpointError for a field that implies a different network."""
    for name in ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"):
        needed(config, component, name)
    refuse_others(config, component, {"hidden_act": tuple(ACTIVATIONS)})


def encode(
    w: NamedWeights,
    config: Mapping[str, Any],
    ids: jax.Array,
    penultimate: bool = False,
    projection: bool = False,
    left_out: jax.Array | None = None,
) -> tuple[jax.Array, jax.Array | None]:
    """Encode prompts for the UNet's cross attention.

    Args:
        ids: [batch, positions] int32.
        penultimate: return the last layer's input, on which XL was trained, instead of its normed output.
        projection: return the pooled embedding too.
        left_out: [] int32: layers that are not read, from the last one on; None: all are.

    Returns:
        Hidden states [batch, positions, hidden], and the pooled embedding [batch, projected] or None.
    """
    hidden, heads, layers = (config[name] for name in ("hidden_size", "num_attention_heads", "num_hidden_layers"))
    activation, eps = ACTIVATIONS[config.get("hidden_act", "quick_gelu")], config.get("layer_norm_eps", 1e-5)
    positions = config.get("max_position_embeddings", 77)
    embeddings = w["embeddings"]
    x = embeddings["token_embedding"].get("weight", config["vocab_size"], hidden)[ids]
    x = x + embeddings["position_embedding"].get("weight", positions, hidden)[: ids.shape[1]]
    before, after = x, []
    for i in range(layers):
        layer, before = w["encoder"]["layers"][i], x
        h = layer_norm(layer["layer_norm1"], x, eps)
        q, k, v = (linear(layer["self_attn"][f"{name}_proj"], h, hidden) for name in "qkv")
        x = x + linear(layer["self_attn"]["out_proj"], attend(q, k, v, heads, "xla", causal=True), hidden)
        h = layer_norm(layer["layer_norm2"], x, eps)
        h = activation(linear(layer["mlp"]["fc1"], h, config["intermediate_size"]))
        x = x + linear(layer["mlp"]["fc2"], h, hidden)
        after.append(x)
    if left_out is not None:
        x = jnp.stack(after)[layers - 1 - left_out]
    last = layer_norm(w["final_layer_norm"], x, eps)
    pooled = None
    if projection:
        at_end = last[jnp.arange(len(ids)), _end(ids, config.get("eos_token_id", 49407))]
        pooled = linear(w["text_projection"], at_end, config["projection_dim"], bias=False)
    return before if penultimate else last, pooled


def _end(ids: jax.Array, eos: int) -> jax.Array:
    """Position of each row's first end token; configs from before 2023 say 2 but mean the largest id."""
    return jnp.argmax(ids if eos == 2 else ids == eos, axis=-1)
