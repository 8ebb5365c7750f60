"""What all layers of a step share: the batch, the devices, and the products that are split over them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import jax
from jax.sharding import Mesh

from apps.arrays.quantization import Weight
from apps.llm.engine.adapters.low_rank import Owned, owned
from apps.llm.engine.attention.spec import AttentionBackend
from apps.llm.engine.execute.step import Batch
from apps.llm.engine.model import products
from apps.llm.engine.model.param import Params

T = TypeVar("T")


@dataclass(frozen=True)
class Machine:
    """What a model computes on, and how."""

    mesh: Mesh
    attention: AttentionBackend
    page_size: int


@dataclass(frozen=True)
class StepContext:
    """A step, as a layer sees it while it is traced."""

    machine: Machine
    batch: Batch
    num_tokens: jax.Array  # [1] how many of the tokens are not padding: these come first
    by_token: bool  # whether tokens are split over the mesh between products
    own: jax.Array | None  # [T, adapters] which tokens have which adapter; None: no adapters
    made: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, machine: Machine, batch: Batch, layers: Sequence[Params]) -> "StepContext":
        adapters = jax.tree.leaves([layer.get("adapters") for layer in layers])  # some layers cannot have any
        own = owned(batch, adapters[0].shape[1]) if adapters else None
        by_token = products.splits_by_token(len(batch.tokens), machine.mesh.size)
        return cls(machine, batch, batch.q_starts[-1:], by_token, own)

    def once(self, key: Any, make: Callable[[], T]) -> T:
        """What several layers share, made by the first. Only for `LayerMixer.shared`: layers are traced apart."""
        if key not in self.made:
            self.made[key] = make()
        return self.made[key]

    def adapted(self, layer: Params, name: str) -> Owned | None:
        """What adapters add to a layer's product of this name."""
        return None if self.own is None or name not in layer["adapters"] else (layer["adapters"][name], self.own)

    def product(self, x: jax.Array, weight: Weight, bias: jax.Array | None = None) -> jax.Array:
        """`[T, in]` times `[out, in]`, plus bias -> `[T, out]` float32."""
        return products.product(x, weight, self.machine.mesh, bias, self.num_tokens)

    def row_parallel(self, x: jax.Array, weight: Weight, bias: jax.Array | None, adapted: Owned | None) -> jax.Array:
        """The same with x and the weight split along `in`: `[T, out]` in x's type, split by token if the step is."""
        return products.row_parallel(x, weight, bias, self.machine.mesh, self.by_token, adapted, self.num_tokens)

    def whole(self, x: jax.Array) -> jax.Array:
        """`[T, ...]` replicated on every device."""
        return products.whole(x, self.machine.mesh, self.by_token)
