"""What each layer of a decoder is, as frozen values: a mixer, a feed-forward network, norms, and a cache.

The architecture's reader makes one `LayerSpec` for each layer, once. Nothing else asks by a layer's number what it has.
`mixers` and `feed_forward` compute what the values here describe.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from apps.llm.engine.model.rope import Rope

GATE_SLOPE = 1.702
"""Of gpt-oss's gates: sigmoid(GATE_SLOPE * x)."""


@dataclass(frozen=True)
class Norm:
    """RMSNorm over the last axis, or LayerNorm, which subtracts the mean first and adds a bias last."""

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    plus_one: bool = False  # multiplies by 1 + weight (Gemma 1 to 3)
    wide: bool = False  # multiplies by the weight in float32 (Gemma 4)
    weighted: bool = True  # False: multiplies by nothing

    @property
    def wide_weight(self) -> bool:
        """Whether it multiplies by the weight before it rounds."""
        return self.plus_one or self.wide or self.kind == "layer"


@dataclass(frozen=True)
class Activation:
    name: Literal["silu", "gelu_tanh"]
    limit: float | None = None  # gpt-oss: see `pointwise.gated`


@dataclass(frozen=True)
class Attention:
    """Softmax attention over the sequence so far, or over a window of it."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float  # multiplies q @ k
    kv_projections: int = 2  # 1: that of the keys gives the values too; 0: it attends to an earlier layer's cache
    window: int | None = None  # in positions; None: full attention
    rope: Rope | None = None  # None: queries and keys are not rotated
    softcap: float | None = None  # cap * tanh(scores / cap)
    qk_norm: Norm | None = None  # over each head of q and k (Qwen3, Gemma 3 and 4)
    value_norm: Norm | None = None  # over each head of v (Gemma 4)
    gated: bool = False  # each number of the heads' outputs is multiplied by a sigmoid gate (Muse Glimmer, Qwen3.5)
    gate_in_q: bool = False  # the checkpoint has each head's gate after its query (Qwen3.5)
    bias: bool = False  # on q, k and v
    output_bias: bool = False
    both_ways: bool = False  # an image's tokens attend to all of it, to those after them too (Gemma 3 and 4)
    sinks: bool = False  # each query head has a learned score beside those of the keys (gpt-oss)
    fused: bool = False  # the checkpoint has q, k and v in one tensor (Phi-3)

    @property
    def owns_cache(self) -> bool:
        return self.kv_projections > 0

    @property
    def form(self) -> "Attention":
        """The same with full attention and without rotation, which change no array's shape."""
        return replace(self, window=None, rope=None, both_ways=False)

    @property
    def rows(self) -> int:
        """Rows of its matrices, each of hidden_size numbers."""
        queries = (3 if self.gated else 2) * self.num_heads
        return self.head_dim * (queries + self.kv_projections * self.num_kv_heads)

    def may_read(self, other: "Mixer") -> bool:
        """Whether it can attend to another layer's cache, where it has none of its own."""
        return isinstance(other, Attention) and other.owns_cache and (other.window is None) == (self.window is None)

    def serving(self, longest: int) -> "Attention":
        """The same for sequences of up to `longest` tokens."""
        return self if self.rope is None else replace(self, rope=self.rope.serving(longest))


@dataclass(frozen=True)
class DeltaNet:
    """Linear attention by the gated delta rule: a matrix for each value head, which each token decays and corrects.

    A convolution over the last tokens comes before it. Source: Yang et al. 2024, "Gated Delta Networks",
    https://arxiv.org/abs/2412.06464.
    """

    num_key_heads: int
    num_value_heads: int  # of each key head, as many, one after another
    key_dim: int
    value_dim: int
    taps: int  # of the convolution, the token's own included
    norm: Norm  # of each value head's output, before it is gated
    fused: bool = False  # the checkpoint has queries to gates in one tensor, key head by key head (Qwen3-Next)

    @property
    def owns_cache(self) -> bool:
        return True

    @property
    def form(self) -> "DeltaNet":
        return self

    @property
    def values_per_key(self) -> int:
        return self.num_value_heads // self.num_key_heads

    @property
    def rows(self) -> int:
        """Rows of its matrices, each of hidden_size numbers."""
        return 2 * self.num_key_heads * self.key_dim + self.num_value_heads * (3 * self.value_dim + 2)

    def may_read(self, other: "Mixer") -> bool:
        """No other layer's state serves it."""
        return False

    def serving(self, longest: int) -> "DeltaNet":
        return self


@dataclass(frozen=True)
class Mlp:
    """One feed-forward network, which all tokens take."""

    width: int  # of the intermediate activations
    activation: Activation
    gated: bool = True  # down(activation(gate(x)) * up(x)); False: down(activation(up(x)))
    bias: bool = False
    fused: bool = False  # the checkpoint has gate and up in one tensor (Phi-3)

    @property
    def rows(self) -> int:
        return (3 if self.gated else 2) * self.width


@dataclass(frozen=True)
class Experts:
    """Feed-forward networks of which a router picks `per_token` for each token, after a softmax over all."""

    count: int
    per_token: int
    width: int  # of one expert's intermediate activations
    renormalized: bool  # the picked experts' shares are scaled to add up to 1
    activation: Activation
    names: Literal["qwen", "mixtral", "gpt_oss", "gemma4"] = "qwen"  # of its tensors in a checkpoint
    biases: bool = False  # on the router and in each expert
    shared: Mlp | None = None  # one that every token takes, times a sigmoid gate (Qwen2-MoE)

    def rows(self, experts: int) -> int:
        """Of the router's matrix, the shared network's, and those of so many experts."""
        return 3 * experts * self.width + self.count + (self.shared.rows if self.shared else 0)


@dataclass(frozen=True)
class MlpBesideExperts:
    """A network that all tokens take and experts beside it, each between norms of its own; their sum (Gemma 4)."""

    mlp: Mlp
    experts: Experts


@dataclass(frozen=True)
class LayerInput:
    """Embeddings of the tokens that a layer takes besides the hidden states (Gemma 4)."""

    width: int
    activation: Activation
    for_images: int = 0  # the token whose embeddings an image's tokens have


Mixer = Attention | DeltaNet
"""What mixes a layer's tokens with those before them."""
FeedForward = Mlp | Experts | MlpBesideExperts


@dataclass(frozen=True)
class LayerSpec:
    """One layer. Its cache is its mixer's own, or that of the layer that `Architecture.cache_of` names."""

    mixer: Mixer
    feed_forward: FeedForward
    norm: Norm
    post_norm: Norm | None = None  # also after the mixer and the feed-forward network (Gemma 2 to 4)
    inputs: LayerInput | None = None
    scalar: bool = False  # its output is multiplied by a number (Gemma 4)

    @property
    def attention(self) -> Attention | None:
        """Its mixer, if that is softmax attention."""
        return self.mixer if isinstance(self.mixer, Attention) else None

    def attending(self, **changes: Any) -> "LayerSpec":
        """The same with other fields of its attention."""
        assert self.attention is not None
        return replace(self, mixer=replace(self.attention, **changes))

    @property
    def mlp(self) -> Mlp | None:
        """The network that all tokens take, not counting one among experts."""
        match self.feed_forward:
            case Mlp():
                return self.feed_forward
            case MlpBesideExperts(mlp=mlp):
                return mlp
        return None

    @property
    def experts(self) -> Experts | None:
        match self.feed_forward:
            case Experts():
                return self.feed_forward
            case MlpBesideExperts(experts=experts):
                return experts
        return None

    @property
    def form(self) -> "LayerSpec":
        """What layers with parameters and caches of the same shapes have in common."""
        return replace(self, mixer=self.mixer.form)
