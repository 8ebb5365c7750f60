"""Rotary position embeddings: their frequencies, and how config.json describes them.

Sources: transformers' modeling_rope_utils, and for each kind the paper named at `Rope`.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

GEMMA4_FULL = {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6}
"""Of layers without a window, where the config has none. Source: Gemma4TextConfig of transformers."""


class UnsupportedModel(ValueError):
    """The decoder does not support the checkpoint's architecture, or its config.json lacks a field."""


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding, and how a `kind` stretches it to `factor` times the positions it was trained on.

    llama3 (Llama 3.1), yarn (https://arxiv.org/abs/2309.00071)
        divide the low frequencies by `factor`, keep the high ones and blend those between: llama3 between two
        wavelengths, yarn between two channels.
    longrope (https://arxiv.org/abs/2402.13753)
        divides each frequency by a number of its own, from one list or, where sequences may be longer than the
        original positions, from another.
    dynamic
        raises `theta` with the longest sequence.
    proportional (Gemma 4)
        rotates the first `part` of the pairs of a whole head, as far as without `part`, and leaves the others.

    transformers picks the list or `theta` anew for the length of each pass, though the keys in its cache were rotated
    by the former. Here `longest` decides for all sequences, so that a cached key fits every later query. vLLM does the
    same.
    """

    theta: float = 10000.0
    factor: float = 1.0
    kind: Literal["default", "linear", "llama3", "yarn", "longrope", "dynamic", "proportional"] = "default"
    part: float = 1.0  # of each head's channels that are rotated: the first ones, except for proportional
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    original_max_len: int = 8192  # all but linear
    beta_fast: float = 32.0  # yarn: channels that turn more often over the original positions keep their frequency
    beta_slow: float = 1.0  # yarn: those that turn less often are divided
    truncate: bool = True  # yarn: the bounds are whole channels
    scale: float = 1.0  # yarn, longrope: multiplies cosines and sines
    short: tuple[float, ...] = ()  # longrope: divisors where no sequence exceeds the original positions
    long: tuple[float, ...] = ()  # longrope: divisors otherwise
    longest: int = 0  # longrope, dynamic: tokens of the longest sequence that is served
    sections: tuple[int, ...] = ()  # pairs that turn with the time, row and column of an image's tokens
    in_turns: bool = False  # whether these take turns (Qwen3.5); else they come one after another (Qwen2.5-VL)

    def axes(self, head_dim: int) -> list[int] | None:
        """Which of a token's positions turns each pair: 0 time, 1 row, 2 column. None: they are the same."""
        if not self.sections:
            return None
        pairs = int(head_dim * self.part) // 2
        if not self.in_turns:
            return [axis % 3 for axis, count in enumerate(self.sections) for _ in range(count)][:pairs]
        return [pair % 3 if pair < 3 * self.sections[pair % 3] else 0 for pair in range(pairs)]

    def inverse_frequencies(self, head_dim: int) -> list[float]:
        """Angle per position for each rotated pair of channels: [part * head_dim / 2], float64.

        A pair is of channels half of those that are rotated apart, so proportional has all, many of them with angle 0.
        """
        if self.kind == "proportional":
            pairs = head_dim // 2
            turned = [self.theta ** (-2 * i / head_dim) / self.factor for i in range(int(self.part * pairs))]
            return turned + [0.0] * (pairs - len(turned))
        width, theta = int(head_dim * self.part), self.theta
        if self.kind == "dynamic":
            stretched = max(self.longest / self.original_max_len, 1)
            theta *= (self.factor * stretched - (self.factor - 1)) ** (width / (width - 2))
        plain = [theta ** (-2 * i / width) for i in range(width // 2)]
        if self.kind == "linear":
            return [f / self.factor for f in plain]
        if self.kind == "llama3":
            return [self._llama3(f) for f in plain]
        if self.kind == "yarn":
            low, high = self._yarn_bounds(width)
            divided = [min(max((i - low) / (high - low), 0.0), 1.0) for i in range(width // 2)]
            return [f * (1 - part) + f / self.factor * part for f, part in zip(plain, divided)]
        if self.kind == "longrope":
            divisors = self.long if self.longest > self.original_max_len else self.short
            return [f / divisor for f, divisor in zip(plain, divisors, strict=True)]
        return plain

    def serving(self, longest: int) -> "Rope":
        """The same for sequences of up to `longest` tokens. Where that changes no frequency, it changes nothing: what
        is cached for one length then serves every other."""
        return replace(self, longest=longest) if self.kind in ("longrope", "dynamic") else self

    def context(self, positions: int) -> int:
        """The longest sequence that a model with so many `max_position_embeddings` can be served with.

        As vLLM has it: model cards say how to stretch a context by the scaling alone, with the positions unchanged.
        """
        if self.kind in ("linear", "dynamic"):
            return int(positions * self.factor)
        return int(self.original_max_len * self.factor) if self.kind == "yarn" else positions

    def _yarn_bounds(self, width: int) -> tuple[float, float]:
        """The first channel pair that is divided in part, and the first that is divided whole."""

        def channel(turns: float) -> float:
            """The pair of channels that turns so often over the original positions."""
            return width * math.log(self.original_max_len / (turns * 2 * math.pi)) / (2 * math.log(self.theta))

        low, high = channel(self.beta_fast), channel(self.beta_slow)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, width - 1)
        return low, high if high != low else low + 0.001

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


def ropes(config: Mapping[str, Any], family: str, head_dim: int) -> tuple[Rope, Rope | None]:
    """The rotary embedding of the layers, and that of the layers with a window where it is another.

    Raises:
        UnsupportedModel: its kind is not supported, a field is missing, or a list has the wrong length.
    """
    # transformers 5 writes `rope_parameters`; older files, and model cards, have rope_theta and rope_scaling beside it.
    given, scaling = config.get("rope_parameters") or {}, config.get("rope_scaling") or {}
    if family == "gemma4":
        if scaling and not given:
            raise UnsupportedModel("config.json: rope_scaling is not read for Gemma 4: write rope_parameters")
        return _gemma4(given.get("full_attention") or GEMMA4_FULL), _gemma4(given.get("sliding_attention") or {})
    if family != "gemma3":
        beside = {name: config.get(name) or given.get(name) for name in ("rope_theta", "partial_rotary_factor")}
        rope = _rope(beside | {name: value for name, value in (scaling or given).items() if value is not None}, config)
        _check_lists(rope, head_dim)
        return rope, None
    full, local = given.get("full_attention") or {}, given.get("sliding_attention") or {}
    scaling = scaling.get("full_attention", scaling)
    full = {"rope_theta": config.get("rope_theta") or 1e6} | full | scaling
    return _rope(full, config), _rope({"rope_theta": config.get("rope_local_base_freq") or 1e4} | local, config)


def _gemma4(scaling: Mapping[str, Any]) -> Rope:
    kind, theta = scaling.get("rope_type", "default"), scaling.get("rope_theta", 1e4)
    if kind == "default":
        return Rope(theta=theta)  # of all channels: transformers does not read partial_rotary_factor here
    if kind != "proportional":
        raise UnsupportedModel(f"config.json: rope_type {kind!r} is not supported for Gemma 4: default or proportional")
    part, factor = scaling.get("partial_rotary_factor", 1.0), scaling.get("factor", 1.0)
    return Rope(theta=theta, kind="proportional", part=part, factor=factor)


def _rope(scaling: Mapping[str, Any], config: Mapping[str, Any]) -> Rope:
    sections, in_turns = tuple(scaling.get("mrope_section") or ()), bool(scaling.get("mrope_interleaved"))
    return replace(_of_kind(scaling, config), sections=sections, in_turns=in_turns)


def _of_kind(scaling: Mapping[str, Any], config: Mapping[str, Any]) -> Rope:
    kind, theta = scaling.get("rope_type") or scaling.get("type") or "default", scaling.get("rope_theta") or 1e4
    if config.get("model_type") == "phi3" and kind in ("su", "yarn"):
        kind = "longrope"  # as the first files of Phi-3 call it
    part = scaling.get("partial_rotary_factor") or 1.0
    try:
        if kind in ("default", "mrope"):
            return Rope(theta=theta, part=part)
        if kind == "linear":
            return Rope(theta=theta, kind="linear", part=part, factor=scaling["factor"])
        if kind == "dynamic":
            original = scaling.get("original_max_position_embeddings") or config["max_position_embeddings"]
            return Rope(theta=theta, kind="dynamic", part=part, factor=scaling["factor"], original_max_len=original)
        if kind == "llama3":
            return Rope(
                theta=theta,
                kind="llama3",
                part=part,
                factor=scaling["factor"],
                low_freq_factor=scaling["low_freq_factor"],
                high_freq_factor=scaling["high_freq_factor"],
                original_max_len=_original(scaling, config),
            )
        if kind == "yarn":
            return _yarn(scaling, theta, part, config)
        if kind == "longrope":
            return _longrope(scaling, theta, part, config)
    except KeyError as error:
        raise UnsupportedModel(f"config.json: rope_type {kind!r} needs the field {error}") from error
    raise UnsupportedModel(
        f"config.json: rope_type {kind!r} is not supported; supported: default, linear, dynamic, llama3, yarn, longrope"
    )


def _original(scaling: Mapping[str, Any], config: Mapping[str, Any]) -> int:
    """The positions that the model was trained on, before it was stretched. Phi-3 has them beside the scaling."""
    beside, inside = config.get("original_max_position_embeddings"), scaling.get("original_max_position_embeddings")
    return int(beside or inside or config["max_position_embeddings"])


def _check_lists(rope: Rope, head_dim: int) -> None:
    pairs = int(head_dim * rope.part) // 2
    for name, divisors in (("short_factor", rope.short), ("long_factor", rope.long)):
        if rope.kind == "longrope" and len(divisors) != pairs:
            raise UnsupportedModel(
                f"config.json: {name} has {len(divisors)} numbers; heads of {head_dim} channels need {pairs}"
            )


def _yarn(scaling: Mapping[str, Any], theta: float, part: float, config: Mapping[str, Any]) -> Rope:
    original = _original(scaling, config)
    factor = scaling.get("factor") or config["max_position_embeddings"] / original

    def grown(scale: float = 1.0) -> float:
        return 0.1 * scale * math.log(factor) + 1.0 if factor > 1 else 1.0

    scale = scaling.get("attention_factor")
    if scale is None:  # DeepSeek gives two scales
        mscale, all_dim = scaling.get("mscale"), scaling.get("mscale_all_dim")
        scale = grown(mscale) / grown(all_dim) if mscale and all_dim else grown()
    return Rope(
        theta=theta,
        kind="yarn",
        part=part,
        factor=factor,
        original_max_len=original,
        beta_fast=scaling.get("beta_fast") or 32.0,
        beta_slow=scaling.get("beta_slow") or 1.0,
        truncate=scaling.get("truncate", True),
        scale=scale,
    )


def _longrope(scaling: Mapping[str, Any], theta: float, part: float, config: Mapping[str, Any]) -> Rope:
    original = _original(scaling, config)
    factor = scaling.get("factor") or config["max_position_embeddings"] / original
    scale = scaling.get("attention_factor")
    if scale is None:
        scale = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    return Rope(
        theta=theta,
        kind="longrope",
        part=part,
        factor=factor,
        original_max_len=original,
        scale=scale,
        short=tuple(scaling["short_factor"]),
        long=tuple(scaling["long_factor"]),
        longest=config["max_position_embeddings"],
    )
