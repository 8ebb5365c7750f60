"""One feed-forward network."""

from dataclasses import dataclass

import jax

from apps.arrays.row_ranges import Rows, Source
from apps.llm.engine.adapters.low_rank import AdaptedProduct, plus
from apps.llm.engine.model.layers import Mlp
from apps.llm.engine.model.param import Param, Params, bias, tensor
from apps.llm.engine.model.pointwise import activation, gated
from apps.llm.engine.model.split import Split
from apps.llm.engine.model.step_context import StepContext


@dataclass(frozen=True)
class Network:
    """The `LayerNetwork` of an `Mlp`; also one among experts."""

    spec: Mlp
    hidden_size: int
    split: Split

    def declare(self, layer: str, module: str = "mlp") -> Params:
        """Gate and up in one matrix, or up alone, then down."""
        spec, hidden, width, name = self.spec, self.hidden_size, self.spec.width, f"{layer}.{module}"
        if spec.gated:
            key, rows, into, of_bias = "gate_up", 2 * width, self._gate_up(name, "weight"), self._gate_up(name, "bias")
        else:
            key, rows = "up", width
            into, of_bias = tensor(f"{name}.up_proj.weight", width, hidden), tensor(f"{name}.up_proj.bias", width)
        down = tensor(f"{name}.down_proj.weight", hidden, width)
        params = {
            key: Param((rows, hidden), ("mlp", "embed"), into, matrix=True),
            "down": Param((hidden, width), ("embed", "mlp"), down, matrix=True),
        }
        if spec.bias:
            params[f"{key}_bias"] = Param((rows,), ("mlp",), of_bias, constant=0.0, wide=True)
            params["down_bias"] = bias(f"{name}.down_proj.bias", hidden)
        return params

    def _gate_up(self, name: str, kind: str) -> Source:
        """The two projections into the network as one matrix: each device's gate rows, then its up rows."""
        spec, width, devices = self.spec, self.spec.width, self.split.devices
        inputs, share = (self.hidden_size,) if kind == "weight" else (), width // devices
        names, height = (f"{name}.gate_proj.{kind}", f"{name}.up_proj.{kind}"), width
        if spec.fused:
            names, height = (f"{name}.gate_up_proj.{kind}",) * 2, 2 * width
        starts = (0, width if spec.fused else 0)
        return tuple(
            Rows(each, (height, *inputs), start + device * share, start + (device + 1) * share)
            for device in range(devices)
            for each, start in zip(names, starts)
        )

    def adapted(self) -> dict[str, AdaptedProduct]:
        width, hidden = self.spec.width, self.hidden_size
        many = 2 if self.spec.gated else 1
        into = AdaptedProduct(many, hidden, many, width, split="out")
        return {"gate_up" if self.spec.gated else "up": into, "down": AdaptedProduct(1, width, 1, hidden, split="in")}

    def apply(self, x: jax.Array, layer: Params, step: StepContext, share: jax.Array | None = None) -> jax.Array:
        """The network, times `share` `[T, 1]` where given."""
        if self.spec.gated:
            both = step.product(x, layer["gate_up"], layer.get("gate_up_bias"))
            both = both.reshape(len(x), self.split.devices, 2, -1)
            both = plus(both, x, step.adapted(layer, "gate_up"), 2)
            gate, up = both[:, :, 0], both[:, :, 1]  # [T, devices, width / devices]
            y = gated(self.spec.activation, gate, up)
        else:
            up = step.product(x, layer["up"], layer.get("up_bias"))[:, None]
            y = activation(self.spec.activation, plus(up, x, step.adapted(layer, "up"), 1))
        y = y.reshape(len(x), -1)
        y = (y if share is None else y * share).astype(x.dtype)
        return step.row_parallel(y, layer["down"], layer.get("down_bias"), step.adapted(layer, "down"))
