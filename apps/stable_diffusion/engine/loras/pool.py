"""The combinations of LoRAs that are on the devices."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from apps.arrays.model_folder import CheckpointError
from apps.serving.errors import RequestError
from apps.stable_diffusion.engine.loras.known import Combination
from apps.stable_diffusion.engine.loras.layers import Layers, layers_of
from apps.stable_diffusion.engine.loras.layout import Pool, forms, joined, zeros
from apps.stable_diffusion.engine.loras.room import LoraRoom
from apps.stable_diffusion.engine.loras.slots import LoraSlots


class LoraForms(NamedTuple):
    """Shapes of the arrays that programs take, by component."""

    pool: Mapping[str, Pool]
    """The denoiser's: all slots."""
    one: Mapping[str, Pool]
    """A single combination's, for the denoiser's pool."""
    texts: Mapping[str, Pool]
    """Likewise of the text encoders, which read a prompt once: theirs are not kept."""

    @classmethod
    def of(cls, arrays: Mapping[str, Mapping[str, Any]], room: LoraRoom, dtype: Any, sharding: Any) -> "LoraForms":
        """For components with these arrays (or their shapes): text encoders that LoRA can change, and one denoiser."""

        def of_all(slots: int, text: bool) -> dict[str, Pool]:
            return {
                name: forms(layers_of(tensors), slots, room.rank, dtype, sharding)
                for name, tensors in arrays.items()
                if name.startswith("text_encoder") == text
            }

        return cls(of_all(room.slots + 1, False), of_all(1, False), of_all(1, True))


class LoraPool:
    """Writes combinations into slots, and counts which pictures use them. Called from one thread at a time.

    Args:
        put: arrays of the host -> of the devices.
        write: the program `layout.written`.
    """

    def __init__(
        self,
        layers: Mapping[str, Layers],
        forms: LoraForms,
        put: Callable[[Any], Any],
        write: Callable[[Any, Any, Any], Any],
    ) -> None:
        self._layers, self._forms, self._put, self._write = layers, forms, put, write
        count = next(iter(next(iter(forms.pool.values())).values())).up.shape[0]
        self._slots = LoraSlots(count - 1)
        self.arrays: Mapping[str, Pool] = put(_all_zeros(forms.pool))
        self._no_text = put(_all_zeros(forms.texts))

    def take(self, combination: Combination) -> int:
        """A slot that has the combination, for one more picture.

        Raises:
            SlotsTaken: wait until a picture has ended.
            RequestError: a LoRA's file cannot be read any more.
        """
        key = combination.key(tuple(self._forms.pool))
        if not key:
            return 0
        slot, new = self._slots.take(key)
        if new:
            try:
                one = self._put(self._joined(combination, self._forms.one))
            except BaseException:
                self._slots.forget(key)
                raise
            self.arrays = self._write(self.arrays, one, self._put(np.int32(slot)))
        return slot

    def release(self, slot: int) -> None:
        """A picture with this slot has ended."""
        self._slots.release(slot)

    def text_key(self, combination: Combination) -> tuple[Any, ...]:
        """What tells texts that are encoded with it from others."""
        return combination.key(tuple(self._forms.texts))

    def of_texts(self, combination: Combination) -> Mapping[str, Pool]:
        """The text encoders' arrays. Raises RequestError: a LoRA's file cannot be read any more."""
        return self._put(self._joined(combination, self._forms.texts)) if self.text_key(combination) else self._no_text

    def _joined(self, combination: Combination, forms: Mapping[str, Pool]) -> Mapping[str, Pool]:
        try:
            for file, *_ in combination.parts:
                file.check_unchanged()
            return {component: self._of_component(combination, component, pool) for component, pool in forms.items()}
        except (CheckpointError, OSError, ValueError) as error:
            raise RequestError("loras", f"loras: {error}") from error

    def _of_component(self, combination: Combination, component: str, pool: Pool) -> Pool:
        parts: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {}
        for file, weight in combination.of(component):
            for place, layer in file.layers:
                if place == component:
                    parts.setdefault(layer, []).append(file.pair(component, layer, weight))
        return joined(self._layers[component], pool, parts)


def _all_zeros(forms: Mapping[str, Pool]) -> dict[str, Pool]:
    return {component: zeros(pool) for component, pool in forms.items()}
