"""The architecture of a checkpoint's decoder, read from its Hugging Face config.json.

One decoder serves all families; they differ only in the fields here. Sources: the config classes and modeling files of
transformers for llama, mistral, qwen2, qwen3, gemma and gemma2; `lm_cloud` describes Saxml's.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal


class UnsupportedModel(ValueError):
    """The decoder does not support the checkpoint's architecture, or its config.json lacks a field."""


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding; `kind` "llama3" adds Llama 3.1's scaling of the low frequencies."""

    theta: float = 10000.0
    factor: float = 1.0
    kind: Literal["default", "linear", "llama3"] = "default"
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_len: int = 8192

    def inverse_frequencies(self, head_dim: int) -> list[float]:
        """Angle per position for each pair of channels: [head_dim / 2], float64."""
        plain = [self.theta ** (-2 * i / head_dim) for i in range(head_dim // 2)]
        if self.kind == "linear":
            return [f / self.factor for f in plain]
        if self.kind == "llama3":
            return [self._llama3(f) for f in plain]
        return plain

    def _llama3(self, frequency: float) -> float:
        """Divide low frequencies by `factor`, keep high ones, and blend those between (Llama 3.1)."""
        wavelength = 2 * math.pi / frequency
        if wavelength > self.original_max_len / self.low_freq_factor:
            return frequency / self.factor
        if wavelength < self.original_max_len / self.high_freq_factor:
            return frequency
        span = self.high_freq_factor - self.low_freq_factor
        keep = (self.original_max_len / wavelength - self.low_freq_factor) / span
        return (1 - keep) * frequency / self.factor + keep * frequency


def sinusoid_frequencies(dim: int) -> list[float]:
    """Angle per position of each sine and its cosine: [dim / 2], float64, from 1 to 1/10000, both ends included.

    Source: praxis' PositionalEmbedding, whose last frequency is 1/10000; "Attention is all you need" stops one short
    of it. The first half of the channels are the sines, the second the cosines.
    """
    half = dim // 2
    return [10000.0 ** (-i / max(half - 1, 1)) for i in range(half)]


@dataclass(frozen=True)
class Architecture:
    """The decoder's dimensions and options."""

    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int
    norm_eps: float
    rope: Rope | None  # None: sinusoids are added to the embeddings, and queries and keys are not rotated
    activation: Literal["silu", "gelu_tanh"]
    tied_embeddings: bool
    norm: Literal["rms", "layer"] = "rms"  # layer: subtracts the mean first and adds a bias last
    gated_mlp: bool = True  # down(activation(gate(x)) * up(x)); False: down(activation(up(x)))
    attention_bias: bool = False  # on q, k and v
    output_bias: bool = False  # on the attention's output projection
    mlp_bias: bool = False
    head_bias: bool = False  # on the logits
    qk_norm: bool = False  # RMSNorm over each head of q and k (Qwen3)
    norm_plus_one: bool = False  # norms multiply by 1 + weight (Gemma)
    scaled_embeddings: bool = False  # embeddings times sqrt(hidden_size) (Gemma)
    post_norms: bool = False  # RMSNorm also after attention and MLP (Gemma 2)
    attention_scale: float = 1.0  # multiplies q @ k
    attention_softcap: float | None = None  # cap * tanh(scores / cap)
    final_softcap: float | None = None  # the same on the logits
    windows: tuple[int | None, ...] = ()  # sliding window of each layer, in positions; None: full attention
    eos_token_ids: tuple[int, ...] = ()

    @property
    def num_params(self) -> int:
        """Number of parameters, without biases and norms (less than a thousandth)."""
        attention = self.hidden_size * self.head_dim * (2 * self.num_heads + 2 * self.num_kv_heads)
        layer = attention + (3 if self.gated_mlp else 2) * self.hidden_size * self.intermediate_size
        embeddings = self.vocab_size * self.hidden_size * (1 if self.tied_embeddings else 2)
        return self.num_layers * layer + embeddings


FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "gemma", "gemma2")


def from_hf_config(config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> Architecture:
    """The architecture that a config.json (and a generation_config.json, for its eos tokens) describes.

    Raises:
        UnsupportedModel: the family or an option is not supported, or a field is missing.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise UnsupportedModel(f"config.json: model_type {family!r} is not supported; supported: {', '.join(FAMILIES)}")

    if config.get("quantization_config"):
        method = config["quantization_config"].get("quant_method")
        raise UnsupportedModel(
            f"config.json: quantization_config ({method}) is not supported: use the unquantized checkpoint and set "
            "quantize_weights to int8 in the engine's config"
        )

    def need(name: str, default: Any = None) -> Any:
        value = config.get(name, default)
        if value is None:
            raise UnsupportedModel(f"config.json: field {name!r} is missing (model_type {family})")
        return value

    gemma, gemma2 = family.startswith("gemma"), family == "gemma2"
    hidden, heads, layers = need("hidden_size"), need("num_attention_heads"), need("num_hidden_layers")
    head_dim = config.get("head_dim") or (256 if gemma else hidden // heads)
    kv_heads = config.get("num_key_value_heads") or heads
    if heads % kv_heads:
        raise UnsupportedModel(f"config.json: {heads} attention heads are not a multiple of {kv_heads} key/value heads")
    query_scale = need("query_pre_attn_scalar", 256) if gemma2 else head_dim
    return Architecture(
        family=family,
        vocab_size=need("vocab_size"),
        hidden_size=hidden,
        intermediate_size=need("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position=need("max_position_embeddings"),
        norm_eps=need("rms_norm_eps", 1e-6),
        rope=_rope(config),
        activation=_activation(config, family),
        tied_embeddings=bool(config.get("tie_word_embeddings", gemma)),
        attention_bias=bool(config.get("attention_bias", False)) or family == "qwen2",
        output_bias=bool(config.get("attention_bias", False)) and family != "qwen2",
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=family == "qwen3",
        norm_plus_one=gemma,
        scaled_embeddings=gemma,
        post_norms=gemma2,
        attention_scale=query_scale**-0.5,
        attention_softcap=config.get("attn_logit_softcapping", 50.0) if gemma2 else None,
        final_softcap=config.get("final_logit_softcapping", 30.0) if gemma2 else None,
        windows=_windows(config, family, layers),
        eos_token_ids=_token_ids((generation or {}).get("eos_token_id") or config.get("eos_token_id")),
    )


def _rope(config: Mapping[str, Any]) -> Rope:
    # transformers 5 writes `rope_parameters`; older files have separate rope_theta and rope_scaling.
    scaling = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = scaling.get("rope_theta") or config.get("rope_theta") or 10000.0
    kind = scaling.get("rope_type") or scaling.get("type") or "default"
    if kind == "default":
        return Rope(theta=theta)
    try:
        if kind == "linear":
            return Rope(theta=theta, kind="linear", factor=scaling["factor"])
        if kind == "llama3":
            return Rope(
                theta=theta,
                kind="llama3",
                factor=scaling["factor"],
                low_freq_factor=scaling["low_freq_factor"],
                high_freq_factor=scaling["high_freq_factor"],
                original_max_len=scaling["original_max_position_embeddings"],
            )
    except KeyError as error:
        raise UnsupportedModel(f"config.json: rope_type {kind!r} needs the field {error}") from error
    raise UnsupportedModel(f"config.json: rope_type {kind!r} is not supported; supported: default, linear, llama3")


def _activation(config: Mapping[str, Any], family: str) -> Literal["silu", "gelu_tanh"]:
    # Gemma's first configs say "gelu", but the models were trained with the tanh approximation; transformers uses it.
    name = config.get("hidden_activation") or config.get("hidden_act")
    if family.startswith("gemma"):
        name = {None: "gelu_pytorch_tanh", "gelu": "gelu_pytorch_tanh"}.get(name, name)
    known: dict[str, Literal["silu", "gelu_tanh"]] = {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
    if name not in known:
        raise UnsupportedModel(f"config.json: hidden_act {name!r} is not supported; supported: {', '.join(known)}")
    return known[name]


def _windows(config: Mapping[str, Any], family: str, layers: int) -> tuple[int | None, ...]:
    window = config.get("sliding_window", 4096 if family == "gemma2" else None)
    if family == "qwen2" or family == "qwen3":
        window = window if config.get("use_sliding_window") else None
    if family not in ("mistral", "gemma2", "qwen2", "qwen3") or not window:
        return (None,) * layers
    kinds = config.get("layer_types")
    if kinds is None and family == "gemma2":
        kinds = ["full_attention" if layer % 2 else "sliding_attention" for layer in range(layers)]
    elif kinds is None and family in ("qwen2", "qwen3"):
        first = config.get("max_window_layers", layers)
        kinds = ["sliding_attention" if layer >= first else "full_attention" for layer in range(layers)]
    elif kinds is None:
        kinds = ["sliding_attention"] * layers
    if len(kinds) != layers:
        raise UnsupportedModel(f"config.json: layer_types has {len(kinds)} entries for {layers} layers")
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _token_ids(value: Any) -> tuple[int, ...]:
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)
