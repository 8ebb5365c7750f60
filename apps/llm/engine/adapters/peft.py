"""Reads a LoRA adapter in PEFT's layout: adapter_config.json and adapter_model.safetensors.

Sources: PEFT's LoraConfig, and `get_pattern_key` for how rank_pattern and alpha_pattern name modules.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax.numpy as jnp
import numpy as np

from apps.arrays.model_folder import CheckpointError, ModelFolder, TensorEntry, from_hub
from apps.llm.engine.adapters.low_rank import LowRank
from apps.llm.engine.adapters.patterns import Patterns
from apps.llm.engine.adapters.stack import Adapted
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.layers import Attention, LayerSpec, Mlp
from apps.llm.engine.model.split import Split
from apps.llm.engine.weights.checkpoint import located
from apps.serving.numbers.ranges import Range, check, real

log = logging.getLogger("podslice")

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
MOST_CONFIG, MOST_HEADER = 2 << 20, 8 << 20
"""Bytes of the config, and of the weights' header: a thousand times what PEFT writes."""
TENSOR = re.compile(
    r"base_model\.model\.(?P<module>(?:model\.language_model\.|language_model\.model\.|model\.|)"
    r"layers\.(?P<layer>\d+)\.(?P<target>\w+\.\w+))\.lora_(?P<matrix>[AB])\.weight"
)
DEFAULTS = {
    "use_dora": False,
    "bias": "none",
    "lora_bias": False,
    "fan_in_fan_out": False,
    "modules_to_save": None,
    "layer_replication": None,
    "target_parameters": None,
    "trainable_token_indices": None,
    "alora_invocation_tokens": None,
}
"""Fields of the config that change what an adapter computes, and the value under which it adds B @ A @ x alone."""
RANGES = {
    "r": Range(1, 2**20),
    "lora_alpha": real(1e-6, 1e6),
    "rank_pattern": Range(1, 2**20, named=True),
    "alpha_pattern": Range(1e-6, 1e6, whole=False, named=True),
}
"""The config's numbers. Scales beyond these are no training's: with them a product overflows."""
LARGEST = 1e18
"""Of a matrix' numbers, times the adapter's scale: the product of two larger ones is infinite in float32."""
GATE = "self_attn.gate_proj"
CHANGES_BASE = ("pissa", "olora", "corda", "loftq")
"""Starts of `init_lora_weights` that also change the base's own weights."""


@dataclass(frozen=True)
class PeftAdapter:
    """An adapter's files, checked against the model: reading its matrices cannot fail on a shape any more."""

    folder: ModelFolder
    config: Mapping[str, Any]
    tensors: dict[tuple[int, str, str], tuple[str, TensorEntry]]  # by layer, target and "A" or "B": module, place
    arch: Architecture

    @classmethod
    def open(
        cls, location: str, arch: Architecture, max_rank: int, base: str = "", roots: Sequence[str] | None = None
    ) -> "PeftAdapter":
        """Read the config and the file's header.

        Args:
            location: a local folder, a hub id or an fsspec URL.
            base: the model's location; a warning says so if the adapter was made for one with another name.
            roots: as `located` takes them.

        Raises:
            CheckpointError: they cannot be read, or do not fit the model; the message says what.
        """
        folder = ModelFolder(located(location, lambda hub_id: from_hub(hub_id, [CONFIG, WEIGHTS]), roots), roots)
        config = folder.read_json(CONFIG, MOST_CONFIG)
        if not isinstance(config, dict):
            raise CheckpointError(f"{location}: {CONFIG} is missing; expected an adapter that PEFT has saved")
        _check_config(location, config)
        if not folder.has(WEIGHTS):
            pickled = folder.has("adapter_model.bin")
            hint = " (pickled weights are not read: save it with safe_serialization)" if pickled else ""
            raise CheckpointError(f"{location}: {WEIGHTS} is missing{hint}")
        made_for = str(config.get("base_model_name_or_path") or "")
        if base and made_for and _last_part(made_for) != _last_part(base):
            log.warning("adapter %s was made for %s; it is used with %s", location, made_for, base)
        tensors = {}
        for name, entry in folder.header(WEIGHTS, most=MOST_HEADER).items():
            match = TENSOR.fullmatch(name)
            if match is None:
                raise CheckpointError(
                    f"{location}: tensor {name} is no LoRA matrix of a decoder layer; adapters change nothing else"
                )
            tensors[int(match["layer"]), match["target"], match["matrix"]] = match["module"], entry
        adapter = cls(folder, config, tensors, arch)
        adapter._check(location, max_rank)
        return adapter

    def layers(self, split: Split, rank: int, dtype: jnp.dtype) -> list[Adapted]:
        """Every layer's matrices, padded with zeros to `rank`; see `stack.shapes`."""
        return [self._layer(layer, split, rank, dtype) for layer in range(self.arch.num_layers)]

    def _check(self, location: str, max_rank: int) -> None:
        if not self.tensors:
            raise CheckpointError(f"{location}/{WEIGHTS} has no matrices")
        for (layer, target, matrix), (module, entry) in self.tensors.items():
            if layer >= self.arch.num_layers:
                raise CheckpointError(
                    f"{location}: the adapter changes {module}, but the model has {self.arch.num_layers} layers: it "
                    "was made for another base model"
                )
            sizes = _targets(self.arch.layers[layer], self.arch.hidden_size)
            if target not in sizes:
                raise CheckpointError(
                    f"{location}: the adapter changes {module}; of this model's layer {layer} only "
                    f"{', '.join(sizes)} can be changed"
                )
            rank, _ = self._rank_and_scale(module)
            if rank > max_rank:
                raise CheckpointError(
                    f"{location}: rank is {rank} at {module}, but the server's max_adapter_rank is {max_rank}: raise it"
                )
            width, out = sizes[target]
            wanted = (rank, width) if matrix == "A" else (out, rank)
            if entry.shape != wanted:
                raise CheckpointError(
                    f"{location}: {module}'s lora_{matrix} has shape {entry.shape}, but the model and the rank imply "
                    f"{wanted}: it was made for another base model"
                )
            if (layer, target, "B" if matrix == "A" else "A") not in self.tensors:
                raise CheckpointError(f"{location}: {module} has a lora_{matrix}, but not the other matrix")

    def _rank_and_scale(self, module: str) -> tuple[int, float]:
        rank = self._ranks.of(module, self.config["r"])
        alpha = self._alphas.of(module, self.config["lora_alpha"])
        return rank, alpha / (rank**0.5 if self.config.get("use_rslora") else rank)

    def _pair(self, layer: int, target: str, rank: int) -> LowRank:
        """A `[rank, in]` and B `[rank, out]` times its scale, in float32; zeros where the adapter changes nothing."""
        width, out = _targets(self.arch.layers[layer], self.arch.hidden_size)[target]
        a, b = np.zeros((rank, width), np.float32), np.zeros((rank, out), np.float32)
        if (layer, target, "A") in self.tensors:
            (module, first), (_, second) = (self.tensors[layer, target, matrix] for matrix in "AB")
            own, scale = self._rank_and_scale(module)
            with np.errstate(over="ignore", invalid="ignore"):  # `_check_numbers` says it better
                a[:own] = self._read(first)
                b[:own] = self._read(second).astype(np.float32).T * scale
            self._check_numbers(f"{module}.lora_A.weight", a)
            self._check_numbers(f"{module}.lora_B.weight", b)
        return LowRank(a, b)

    def _check_numbers(self, name: str, values: np.ndarray) -> None:
        # All adapters' matrices lie in one array: what is not finite here would not stay its own.
        largest = np.abs(values).max(initial=0)
        if not largest <= LARGEST:
            raise CheckpointError(
                f"{self.folder.location}/{WEIGHTS}: tensor {name} has numbers that are not finite, or larger than "
                f"{LARGEST:g} with the adapter's scale: {largest:g}"
            )

    @cached_property
    def _ranks(self) -> Patterns:
        return Patterns(f"{self.folder.location}/{CONFIG}", "rank_pattern", self.config.get("rank_pattern"))

    @cached_property
    def _alphas(self) -> Patterns:
        return Patterns(f"{self.folder.location}/{CONFIG}", "alpha_pattern", self.config.get("alpha_pattern"))

    def _read(self, entry: TensorEntry) -> np.ndarray:
        return self.folder.array(entry.file, entry.start, entry.stop, entry.dtype, entry.shape)

    def _layer(self, layer: int, split: Split, rank: int, dtype: jnp.dtype) -> Adapted:
        """One layer's matrices, in the layout of the fused products; see `LowRank`."""
        spec = self.arch.layers[layer]
        made = {} if spec.attention is None else self._attention(layer, spec.attention, split, rank)
        if spec.mlp is not None:
            made |= self._mlp(layer, spec.mlp, rank)
        return {name: LowRank(*(part.astype(dtype) for part in pair)) for name, pair in made.items()}

    def _attention(self, layer: int, attention: Attention, split: Split, rank: int) -> Adapted:
        heads, dim = split.heads(attention.num_heads, attention.num_kv_heads), attention.head_dim
        q, *shared = self._pairs(layer, "self_attn.qkv_proj", _projections(attention), attention.fused, rank)
        gate = None if not attention.gated or attention.gate_in_q else self._pair(layer, GATE, rank)
        if attention.gate_in_q:
            each = q.b.reshape(rank, attention.num_heads, 2, dim)
            q, gate = (LowRank(q.a, each[:, :, which].reshape(rank, -1)) for which in range(2))
        by_head = q.b.reshape(rank, heads.kv_heads, heads.group, dim).transpose(2, 0, 1, 3)
        queries = by_head.reshape(heads.group, rank, -1)
        repeated = [
            np.repeat(pair.b.reshape(rank, -1, dim), heads.repeat, axis=1).reshape(1, rank, -1) for pair in shared
        ]
        qkv = LowRank(np.stack([q.a, *(pair.a for pair in shared)]), np.concatenate([queries, *repeated]))
        made = {"qkv": qkv, "out": _stacked(self._pair(layer, "self_attn.o_proj", rank))}
        return made if gate is None else made | {"gate": _stacked(gate)}

    def _mlp(self, layer: int, mlp: Mlp, rank: int) -> Adapted:
        into = _stacked(*self._pairs(layer, "mlp.gate_up_proj", _into(mlp), mlp.fused, rank))
        return {"gate_up" if mlp.gated else "up": into, "down": _stacked(self._pair(layer, "mlp.down_proj", rank))}

    def _pairs(self, layer: int, fused: str, outputs: dict[str, int], is_fused: bool, rank: int) -> list[LowRank]:
        """The pair of each of these projections; cut from the fused one where the checkpoint has that."""
        if not is_fused:
            return [self._pair(layer, name, rank) for name in outputs]
        whole = self._pair(layer, fused, rank)
        ends = np.cumsum(list(outputs.values()))[:-1]
        return [LowRank(whole.a, part) for part in np.split(whole.b, ends, axis=1)]


def _stacked(*found: LowRank) -> LowRank:
    return LowRank(np.stack([pair.a for pair in found]), np.stack([pair.b for pair in found]))


def _projections(attention: Attention) -> dict[str, int]:
    """Outputs of the projections into attention that a layer has."""
    queries, keys = attention.num_heads * attention.head_dim, attention.num_kv_heads * attention.head_dim
    every = {
        "self_attn.q_proj": queries * (2 if attention.gate_in_q else 1),
        "self_attn.k_proj": keys,
        "self_attn.v_proj": keys,
    }
    return dict(list(every.items())[: 1 + attention.kv_projections])


def _into(mlp: Mlp) -> dict[str, int]:
    """Outputs of the projections into a feed-forward network."""
    names = ("mlp.gate_proj", "mlp.up_proj") if mlp.gated else ("mlp.up_proj",)
    return dict.fromkeys(names, mlp.width)


def _targets(spec: LayerSpec, hidden: int) -> dict[str, tuple[int, int]]:
    """Inputs and outputs of the layer's projections that an adapter may change."""
    attention, mlp = spec.attention, spec.mlp
    into: dict[str, int] = {}
    if attention is not None:
        into = _projections(attention)
        if attention.fused:
            into = {"self_attn.qkv_proj": sum(into.values())}
        if attention.gated and not attention.gate_in_q:
            into[GATE] = attention.num_heads * attention.head_dim
    if mlp is not None:
        into |= {"mlp.gate_up_proj": 2 * mlp.width} if mlp.fused else _into(mlp)
    found = {name: (hidden, out) for name, out in into.items()}
    if attention is not None:
        found["self_attn.o_proj"] = attention.num_heads * attention.head_dim, hidden
    return found if mlp is None else found | {"mlp.down_proj": (mlp.width, hidden)}


def _check_config(location: str, config: Mapping[str, Any]) -> None:
    where = f"{location}/{CONFIG}"
    if config.get("peft_type") != "LORA":
        raise CheckpointError(f"{where}: peft_type is {config.get('peft_type')!r}; only LORA is served")
    for field in ("r", "lora_alpha"):
        if config.get(field) is None:
            raise CheckpointError(f"{where}: {field} is missing")
    check(where, config, RANGES, CheckpointError)
    for field, value in DEFAULTS.items():
        if config.get(field) not in (value, None, [], {}):
            raise CheckpointError(f"{where}: {field} is {config[field]!r}, which is not supported; only {value!r} is")
    drawn = config.get("init_lora_weights")
    if isinstance(drawn, str) and drawn.startswith(CHANGES_BASE):
        raise CheckpointError(
            f"{where}: init_lora_weights is {drawn!r}, which also changes the base model's weights: convert the "
            "adapter to plain LoRA with PEFT's path_initial_model_for_weight_conversion"
        )


def _last_part(location: str) -> str:
    return location.rstrip("/").rsplit("/", 1)[-1].lower()
