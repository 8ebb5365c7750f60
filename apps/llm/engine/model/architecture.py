"""The architecture of a checkpoint's decoder, read from its Hugging Face config.json.

One decoder serves all families; they differ only in the fields here. Sources: the config classes and modeling files of
transformers for llama, mistral, mixtral, phi3, qwen2, qwen2_moe, qwen3, qwen3_moe, gemma, gemma2, gemma3 and gpt_oss;
`gemma4` and `lm_cloud` describe Gemma 4's and Saxml's, `families.defaults` what a file leaves out.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from apps.llm.engine.model import config_fields
from apps.llm.engine.model.config_fields import check_fields, check_together
from apps.llm.engine.model.families import defaults, gemma4
from apps.llm.engine.model.families.gemma4 import FullAttention
from apps.llm.engine.model.rope import Rope, ropes
from apps.llm.engine.model.rope import UnsupportedModel as UnsupportedModel


@dataclass(frozen=True)
class Experts:
    """Feed-forward networks of which a router picks `per_token` for each token, after a softmax over all."""

    count: int
    per_token: int
    width: int  # of one expert's intermediate activations
    renormalized: bool  # the picked experts' shares are scaled to add up to 1
    layers: tuple[bool, ...]  # which layers have them; the others have one feed-forward network
    names: Literal["qwen", "mixtral", "gpt_oss", "gemma4"] = "qwen"  # of its tensors in a checkpoint
    biases: bool = False  # on the router and in each expert
    shared_width: int = 0  # of one that every token takes, times a sigmoid gate (Qwen2-MoE); 0: none
    beside: bool = False  # the layer's own feed-forward network, between other norms (Gemma 4): see Decoder._beside


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
    qk_norm: bool = False  # RMSNorm over each head of q and k (Qwen3, Gemma 3)
    value_norm: bool = False  # RMSNorm without a weight over each head of v (Gemma 4)
    norm_plus_one: bool = False  # norms multiply by 1 + weight (Gemma 1 to 3)
    wide_norm: bool = False  # norms multiply by the weight in float32 (Gemma 4)
    scaled_embeddings: bool = False  # embeddings times sqrt(hidden_size) (Gemma)
    post_norms: bool = False  # RMSNorm also after attention and MLP (Gemma 2 to 4)
    layer_scalars: bool = False  # each layer's output is multiplied by a number (Gemma 4)
    attention_scale: float = 1.0  # multiplies q @ k
    attention_softcap: float | None = None  # cap * tanh(scores / cap)
    final_softcap: float | None = None  # the same on the logits
    gate_limit: float | None = None  # gpt-oss: see `pointwise.gated`
    sinks: bool = False  # each query head has a learned score beside those of the keys (gpt-oss)
    windows: tuple[int | None, ...] = ()  # sliding window of each layer, in positions; None: full attention
    fused: bool = False  # the checkpoint has q, k and v in one tensor, and gate and up in another (Phi-3)
    experts: Experts | None = None
    window_rope: Rope | None = None  # of the layers with a window (Gemma 3 and 4); None: `rope`
    kv_projections: int = 2  # 1: that of the keys gives the values too
    full: FullAttention | None = None  # heads of the layers without a window (Gemma 4); None: like the others
    kv_of: tuple[int, ...] = ()  # the layer whose keys and values each layer attends to (Gemma 4); (): its own
    wide_shared: bool = False  # layers with another's keys have feed-forward networks of twice the width
    per_layer_width: int = 0  # of embeddings that each layer has of its own (Gemma 4); 0: none
    eos_token_ids: tuple[int, ...] = ()
    labels: int = 0  # of a classifier, whose matrix takes the place of the head's first rows; 0: the head is a head
    answers: tuple[str, str] | None = None  # the words for no and yes, of a model that judges with one of them

    def rope_of(self, layer: int) -> Rope | None:
        return self.window_rope if self.window_rope is not None and self.windows[layer] else self.rope

    def serving(self, longest: int | None) -> "Architecture":
        """The same with rotary embeddings for sequences of up to `longest` tokens; None: `max_position`."""
        longest = longest or self.max_position
        rope, window_rope = (each and replace(each, longest=longest) for each in (self.rope, self.window_rope))
        return replace(self, rope=rope, window_rope=window_rope)

    def few(self, layers: int) -> list[int]:
        """So many of its layers: the first, but one of each kind, as far as so few can be."""
        every = range(self.num_layers)
        kinds = {self.of_layer(layer): layer for layer in reversed(every)}
        chosen = sorted(kinds.values())[:layers]
        chosen += [layer for layer in every if layer not in chosen][: layers - len(chosen)]
        return sorted(chosen)

    def only(self, layers: Sequence[int]) -> "Architecture":
        """The same with these of its layers."""

        def of(each: tuple[Any, ...]) -> tuple[Any, ...]:
            return tuple(each[layer] for layer in layers)

        def source(layer: int) -> int:
            """Among them, the layer whose keys and values it attends to, or the last one like that."""
            wanted = self.kv_layer(layer)
            like = (n for n in layers if self.owns_kv(n) and bool(self.windows[n]) == bool(self.windows[wanted]))
            return layers.index(wanted if wanted in layers else max(like))

        few = self.experts and replace(self.experts, layers=of(self.experts.layers))
        kv_of = tuple(map(source, layers)) if self.kv_of else ()
        return replace(self, num_layers=len(layers), windows=of(self.windows), experts=few, kv_of=kv_of)

    def of_layer(self, layer: int) -> "Architecture":
        """The same where all layers have this one's heads, projections and width of the feed-forward network."""
        changes: dict[str, Any] = {}
        if self.full is not None and not self.windows[layer]:
            changes = {"num_kv_heads": self.full.num_kv_heads, "head_dim": self.full.head_dim, "full": None}
            changes["kv_projections"] = self.full.kv_projections
        if not self.owns_kv(layer):
            changes |= {"kv_projections": 0, "intermediate_size": self.intermediate_size * (1 + self.wide_shared)}
        return replace(self, **changes) if changes else self

    def kv_layer(self, layer: int) -> int:
        return self.kv_of[layer] if self.kv_of else layer

    def owns_kv(self, layer: int) -> bool:
        return self.kv_layer(layer) == layer

    @property
    def head_dims(self) -> set[int]:
        return {self.of_layer(layer).head_dim for layer in range(self.num_layers)}

    def has_experts(self, layer: int) -> bool:
        return self.experts is not None and self.experts.layers[layer]

    def has_mlp(self, layer: int) -> bool:
        """Whether it has a feed-forward network that all tokens take, not counting a shared expert."""
        return self.experts is None or self.experts.beside or not self.experts.layers[layer]

    @property
    def split_widths(self) -> set[int]:
        """Widths of the feed-forward networks that are split over devices."""
        if self.experts is None:
            return {self.intermediate_size}
        dense = {self.intermediate_size} if any(map(self.has_mlp, range(self.num_layers))) else set()
        return dense | ({self.experts.shared_width} - {0})

    @property
    def num_params(self) -> int:
        """Number of parameters, without biases and norms (less than a thousandth)."""
        return self._params(self.experts.count if self.experts else 0)

    @property
    def active_params(self) -> int:
        """Those that one token is multiplied by, and the embeddings."""
        return self._params(self.experts.per_token if self.experts else 0)

    def _params(self, experts: int) -> int:
        matrices = 3 if self.gated_mlp else 2
        rows = 3 * self.num_layers * self.per_layer_width  # of hidden_size numbers, as in all matrices
        for layer in range(self.num_layers):
            own = self.of_layer(layer)
            rows += own.head_dim * (2 * own.num_heads + own.kv_projections * own.num_kv_heads)
            rows += matrices * own.intermediate_size * self.has_mlp(layer)
            if self.experts is not None and self.has_experts(layer):
                rows += matrices * (experts * self.experts.width + self.experts.shared_width) + self.experts.count
        embeddings = self.hidden_size * (1 if self.tied_embeddings else 2) + self.num_layers * self.per_layer_width
        return self.hidden_size * rows + self.vocab_size * embeddings


FAMILIES = (
    *("llama", "mistral", "mixtral", "mistral3", "phi3", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    *("gemma", "gemma2", "gemma3", "gemma3_text", "gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"),
    "gpt_oss",
)
WITH_TOWER = {
    "gemma3": "gemma3_text",
    "gemma4": "gemma4_text",
    "gemma4_unified": "gemma4_unified_text",
    "mistral3": "mistral",
}
"""Families with towers for other media, which are not loaded, and their decoder's where its config does not say it."""
DENSE = {"mixtral": "mistral", "qwen2_moe": "qwen2", "qwen3_moe": "qwen3"}
"""Families with experts, and the one that they are otherwise like."""
OWN_BIAS = {"mistral", "mixtral", "phi3", "qwen2", "qwen2_moe"}
"""Families whose attention has biases or none, whatever attention_bias says."""


def from_hf_config(config: Mapping[str, Any], generation: Mapping[str, Any] | None = None) -> Architecture:
    """The architecture that a config.json (and a generation_config.json, for its eos tokens) describes.

    Raises:
        UnsupportedModel: the family or an option is not supported, a field is missing, or a number is out of range.
    """
    try:
        arch = _from_hf_config(config, generation)
    except (ArithmeticError, TypeError, AttributeError) as error:
        raise UnsupportedModel(f"config.json: a field has a value of the wrong type, or 0: {error}") from error
    check_together(arch)
    return arch


def _from_hf_config(config: Mapping[str, Any], generation: Mapping[str, Any] | None) -> Architecture:
    config, family = _decoder_of(config)
    check_fields(config, generation)
    config = defaults.completed(config, family)
    qkv_bias = family == "qwen2" or (family == "qwen2_moe" and config["qkv_bias"])
    bias = bool(config.get("attention_bias")) and family not in OWN_BIAS
    if family == "gemma3_text":
        family = "gemma3"
        if config.get("use_bidirectional_attention"):
            raise UnsupportedModel("config.json: use_bidirectional_attention is not supported: the model is an encoder")
    if family.startswith("gemma4"):
        config, family = gemma4.completed(config, family), "gemma4"

    def need(name: str, default: Any = None) -> Any:
        value = config.get(name, default)
        if value is None:
            raise UnsupportedModel(f"config.json: field {name!r} is missing (model_type {family})")
        return value

    sparse = family in DENSE or family == "gpt_oss" or config.get("enable_moe_block")
    experts = _experts(config, family, need) if sparse else None
    hidden, heads, layers = need("hidden_size"), need("num_attention_heads"), need("num_hidden_layers")
    gemma, post_norms = family.startswith("gemma"), family in ("gemma2", "gemma3", "gemma4")
    head_dim = config.get("head_dim") or (256 if gemma else hidden // heads)
    if config.get("head_dim") is None and not gemma and hidden % heads:
        raise UnsupportedModel(f"config.json: hidden_size {hidden} is not a multiple of num_attention_heads {heads}")
    kv_heads = config.get("num_key_value_heads") or heads
    if heads % kv_heads:
        raise UnsupportedModel(f"config.json: {heads} attention heads are not a multiple of {kv_heads} key/value heads")
    rope, window_rope = ropes(config, family, head_dim)
    # Gemma 3's own numbers are those of the stretched context already.
    positions = need("max_position_embeddings")
    context = positions if family == "gemma3" else rope.context(positions)
    windows = config_fields.windows(config, family, layers, context)
    family = DENSE.get(family, family)
    # Gemma 4's queries are not scaled: their norm's weights are.
    query_scale = need("query_pre_attn_scalar") if family in ("gemma2", "gemma3") else head_dim
    labels = config_fields.labels(config)
    ends = (generation or {}).get("eos_token_id")
    return Architecture(
        family=family,
        vocab_size=need("vocab_size"),
        hidden_size=hidden,
        intermediate_size=need("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position=context,
        norm_eps=need("rms_norm_eps"),
        rope=rope,
        window_rope=window_rope,
        activation=config_fields.activation(config, family),
        tied_embeddings=bool(config.get("tie_word_embeddings")) and not labels,
        attention_bias=qkv_bias or bias,
        output_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)) and family == "llama",
        qk_norm=family in ("qwen3", "gemma3", "gemma4"),
        norm_plus_one=gemma and family != "gemma4",
        scaled_embeddings=gemma,
        post_norms=post_norms,
        attention_scale=1.0 if family == "gemma4" else query_scale**-0.5,
        attention_softcap=config.get("attn_logit_softcapping") if post_norms else None,
        final_softcap=config.get("final_logit_softcapping") if post_norms else None,
        gate_limit=config_fields.gate_limit(config) if family == "gpt_oss" else None,
        sinks=family == "gpt_oss",
        windows=windows,
        **(gemma4.options(config) if family == "gemma4" else {}),
        fused=family == "phi3",
        experts=experts,
        eos_token_ids=config_fields.token_ids(
            config.get("eos_token_id") if ends is None else ends, need("vocab_size"), "eos_token_id"
        ),
        labels=labels,
        answers=tuple(config.get("classifier_from_token") or ()) or None,
    )


def _decoder_of(config: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """The config of the decoder, and its model_type. Raises UnsupportedModel if there is no such family."""
    family = config.get("model_type")
    if family not in FAMILIES:
        raise UnsupportedModel(f"config.json: model_type {family!r} is not supported; supported: {', '.join(FAMILIES)}")
    if family not in WITH_TOWER:
        return config, family
    text = config.get("text_config") or (defaults.MISTRAL3 if family == "mistral3" else {})
    # Gemma 4's files have more ends beside the decoder's config than in it; the head belongs to the whole.
    beside = {
        "eos_token_id": config.get("eos_token_id"),
        "tie_word_embeddings": config.get("tie_word_embeddings", True),
    }
    text = {**text, **{name: value for name, value in beside.items() if value is not None}}
    inner = text.get("model_type", WITH_TOWER[family])
    if inner not in defaults.DEFAULTS:
        raise UnsupportedModel(f"config.json: text_config.model_type {inner!r} is not supported")
    return text, inner


def _experts(config: Mapping[str, Any], family: str, need: Callable[..., Any]) -> Experts:
    layers = need("num_hidden_layers")
    # transformers 5 writes num_local_experts for all; the hub's files of Qwen say num_experts.
    count = need("num_local_experts", config.get("num_experts"))
    if family == "gpt_oss":
        width, per_token = need("intermediate_size"), need("num_experts_per_tok")
        return Experts(count, per_token, width, True, (True,) * layers, names="gpt_oss", biases=True)
    if family == "mixtral":
        width, per_token = need("intermediate_size"), need("num_experts_per_tok", 2)
        return Experts(count, per_token, width, True, (True,) * layers, names="mixtral")
    if family == "gemma4":
        width, per_token = need("moe_intermediate_size"), need("top_k_experts")
        return Experts(count, per_token, width, True, (True,) * layers, names="gemma4", beside=True)
    dense, step = config.get("mlp_only_layers") or [], config.get("decoder_sparse_step", 1)
    return Experts(
        count=count,
        per_token=need("num_experts_per_tok"),
        width=need("moe_intermediate_size"),
        renormalized=bool(config.get("norm_topk_prob", False)),
        layers=tuple(layer not in dense and (layer + 1) % step == 0 for layer in range(layers)),
        shared_width=need("shared_expert_intermediate_size") if family == "qwen2_moe" else 0,
    )
