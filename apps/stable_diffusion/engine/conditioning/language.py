"""A language model as text encoder: hidden states of some of its layers, computed by the language engine's decoder.

The only place where pictures know language models. The model is split over all chips, as it is where it answers; each
chip gets the whole result.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from apps.arrays.model_folder import CheckpointError
from apps.arrays.programs import zeros
from apps.llm.engine import kernels
from apps.llm.engine.attention.spans import PART
from apps.llm.engine.execute.step import Batch
from apps.llm.engine.model import params
from apps.llm.engine.model.architecture import Architecture
from apps.llm.engine.model.declaration import declare
from apps.llm.engine.model.decoder import Decoder
from apps.llm.engine.model.families.hugging_face import from_hf_config
from apps.llm.engine.model.mixers.interface import Capacity
from apps.llm.engine.model.param import Params
from apps.llm.engine.model.rope import UnsupportedModel
from apps.llm.engine.weights.checkpoint import Checkpoint as LanguageCheckpoint
from apps.stable_diffusion.engine.conditioning.interface import AllWeights, EncodedPrompt
from apps.stable_diffusion.engine.loras.layout import Pool
from apps.stable_diffusion.engine.model.checkpoint import Checkpoint

NAME = "text_encoder"
PAGE = 32
"""Positions of a page of the cache, which lasts for one prompt."""


@dataclass(frozen=True)
class LanguageEncoder:
    """The `PromptEncoder`.

    Args:
        arch: of the layers that are run.
        layers: those whose output the denoiser reads, from 1, side by side.
        padded: whether it reads what lies behind the prompt, too. Padding sees all of the prompt, and no padding.
        positions: of a prompt, a multiple of PAGE.
        mesh: with the axis `tensor`.
    """

    arch: Architecture
    layers: tuple[int, ...]
    padded: bool
    positions: int
    dtype: jnp.dtype
    mesh: Mesh

    components = (NAME,)
    adaptable = ()

    @classmethod
    def of(
        cls,
        config: Mapping[str, Any],
        layers: Sequence[int],
        padded: bool,
        positions: int,
        dtype: jnp.dtype,
        devices: Any,
    ) -> "LanguageEncoder":
        """The encoder of a config.json.

        Args:
            layers: from 1, or from the end, -1 being the last but one: the last one's output is normed.
            devices: that it is split over, an array of them.

        Raises:
            CheckpointError: the model is not supported, or does not split over so many devices.
        """
        try:
            arch = from_hf_config(config).serving(positions)
            read = tuple(layer if layer > 0 else arch.num_layers + layer for layer in layers)
            if not 0 < min(read) <= max(read) < arch.num_layers:
                said = ", ".join(map(str, layers))
                raise ValueError(f"num_hidden_layers is {arch.num_layers}, but the transformer reads layers {said}")
            arch = arch.only(range(max(read)))
            if padded:  # the engine's way for tokens that see others than those before them
                arch = replace(arch, layers=tuple(spec.attending(both_ways=True) for spec in arch.layers))
            arch.split(devices.size)
        except (UnsupportedModel, ValueError) as error:
            raise CheckpointError(f"{NAME}/config.json: on {devices.size} devices: {error}") from error
        return cls(arch, read, padded, positions, dtype, Mesh(devices.reshape(-1), ("tensor",)))

    @cached_property
    def decoder(self) -> Decoder:
        head_dims = {attention.head_dim for attention in self.arch.attention}
        attention = kernels.attention("auto", self.mesh, head_dims, PAGE, cache=self.dtype)
        return Decoder(self.arch, self.arch.split(self.mesh.size), PAGE, self.dtype, attention, self.mesh)

    @property
    def declared(self) -> Params:
        """Without the final norm and the head: hidden states are taken before them."""
        tree = declare(self.arch, self.decoder.split)
        return {part: tree[part] for part in ("embed", "layers")}

    def inputs(self) -> tuple[jax.ShapeDtypeStruct, ...]:
        """Token ids `[1, positions]`, and how many of them are the prompt's `[1]`."""
        return jax.ShapeDtypeStruct((1, self.positions), np.int32), jax.ShapeDtypeStruct((1,), np.int32)

    def encoded(self) -> EncodedPrompt:
        context = jax.ShapeDtypeStruct((self.positions, len(self.layers) * self.arch.hidden_size), self.dtype)
        length = None if self.padded else jax.ShapeDtypeStruct((), np.int32)
        return EncodedPrompt(context, None, length)  # type: ignore[arg-type]  # shapes in the arrays' places

    def forms(self) -> dict[str, Any]:
        return {NAME: params.abstract(self.declared, self.mesh, self.dtype, int8=False)}

    def loader(self, checkpoint: Checkpoint) -> Callable[[], dict[str, Any]]:
        folder = LanguageCheckpoint(f"{checkpoint.location}/{NAME}")
        _ = folder.tensors  # reads the files' headers
        return lambda: {NAME: params.load(self.declared, folder, self.mesh, self.dtype, int8=False)}

    def encode(
        self, weights: AllWeights, inputs: tuple[jax.Array, ...], loras: Mapping[str, Pool] | None = None
    ) -> EncodedPrompt:
        assert not loras
        ids, length = inputs
        pages = self.positions // PAGE
        room = Capacity(pages + 1, PAGE, 1, self.dtype)
        states = [mixer.state(self.decoder.impl, room) for mixer in self.decoder.mixers]
        one = jnp.zeros(1, np.int32)
        count = one + self.positions if self.padded else length
        batch = Batch(
            tokens=ids[0],
            q_starts=jnp.concatenate([one, count]),
            kv_lens=count,
            pages=1 + jnp.arange(pages, dtype=np.int32)[None],
            num_seqs=one + 1,
            slots=one,
            rows=one,
            decoding=one,
            adapter=one,
            sampling=None,  # type: ignore[arg-type]  # nothing is sampled
            spans=self._padding(length[0]) if self.padded else None,
        )
        caches = [state and zeros(state.arrays) for state in states]
        outputs: dict[int, Any] = dict.fromkeys(self.layers)
        self.decoder.hidden(dict(weights[NAME]), batch, batch.tokens, caches, outputs=outputs)
        context = jnp.concatenate([outputs[layer] for layer in self.layers], axis=-1).astype(self.dtype)
        return EncodedPrompt(context, None, None if self.padded else length[0])

    def _padding(self, length: jax.Array) -> jax.Array:
        """What lies behind the prompt, as a batch's `spans`: it sees what comes before `length`."""
        parts = np.zeros((self.positions // 2, 1), np.int32)
        first = length + PART * np.arange(len(parts), dtype=np.int32)[:, None]
        return jnp.concatenate([first, jnp.clip(self.positions - first, 0, PART), parts + length], axis=1)


def register_kernels(targets: Iterable[str]) -> None:
    """See `kernels.register`."""
    kernels.register(targets)
