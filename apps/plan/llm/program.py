"""The engine's own step programs, lowered from abstract arrays and compiled for devices that need not exist.

A decoder's layers are alike, or of a few kinds, so a program of few layers and one of a few more of a kind say what
each further layer adds: memory, bytes and cycles of the whole are extrapolated from them. Only the layer count changes;
widths, vocabulary, batch, cache and sharding are the config's own.
"""

from collections import Counter, defaultdict
from dataclasses import dataclass, fields, replace
from functools import cached_property

import jax

from apps.arrays.programs import Key, ProgramSpec
from apps.llm.engine.execute.programs import EnginePrograms
from apps.llm.engine.execute.step import StepShape
from apps.llm.engine.model import params
from apps.llm.engine.model.layers import LayerSpec
from apps.plan import hlo, traffic
from apps.plan.llm import experts
from apps.plan.measured import Measured, compiled

FEW_LAYERS, MORE_LAYERS = 2, 2
"""Layers compiled for extrapolation, and those more of a form; even, since the windows of some models alternate."""


@dataclass(frozen=True)
class MeasuredStep(Measured):
    """The compiler's figures for a step on each device, with the sizes of its arguments."""

    weights: float
    lookup: float
    """The part of the weights that is only a lookup table, of which a step reads a few rows."""
    kv_cache: float
    """All pages, with the padding of their layout."""
    cycles_everything: float
    """Cycles when requests ask for sampling, penalties and log probabilities."""

    @property
    def other_arguments(self) -> float:
        """Bytes of the sampling state, KV scales and the step's own inputs."""
        return self.arguments - self.weights - self.kv_cache


class StepPrograms(EnginePrograms):
    """An engine's programs, on a slice that need not exist: the compiler's figures of its steps."""

    def samples(self, whole: bool = False) -> list[list[int]]:
        """The layers of the programs to compile: of the first program, and of those with more layers of each kind."""
        every, forms = list(range(self.arch.num_layers)), defaultdict[LayerSpec, list[int]](list)
        for layer, spec in enumerate(self.arch.layers):
            forms[spec.form].append(layer)
        few = self.arch.few(max(FEW_LAYERS, len(forms)))
        more = [[layer for layer in of_form if layer not in few][:MORE_LAYERS] for of_form in forms.values()]
        longer = [sorted(few + added) for added in more if added]
        return [every] if whole or any(layers == every for layers in longer) else [few, *longer]

    def page_bytes(self) -> float:
        """Bytes of a page, all layers together, on each device; layouts may pad it."""
        return self.bytes_held_by("pages") / self.pages / self.mesh.size

    def image_bytes(self) -> float:
        """What images take of each device: the tower, those that are kept, and what encoding needs for itself."""
        if self.encodings is None:
            return 0
        tower = params.shard_bytes(self.weights["tower"])
        return tower + self.encodings.bytes_needed(self.decoder.dtype.itemsize)

    def lowered(self, shape: StepShape) -> jax.stages.Lowered:
        """Lowers the step as the engine would on those devices."""
        # Kernels ask the mesh in use what kind of chip they are for; on one chip no shard_map sets it.
        with jax.sharding.use_abstract_mesh(self.mesh.abstract_mesh):
            return self._specs["step", shape.tokens].lowered()

    @cached_property
    def _specs(self) -> dict[Key, ProgramSpec]:
        return {spec.key: spec for spec in self.listed()}

    def measure(self, shape: StepShape, whole: bool = False) -> MeasuredStep:
        """Figures for the whole model: compiled (`whole`, or few layers), or extrapolated from two smaller ones.

        Raises:
            jax.errors.JaxRuntimeError: a whole program does not fit into the devices' memory.
        """
        samples = self.samples(whole)
        few, *longer = (replace(self, arch=self.arch.only(layers)).compiled(shape) for layers in samples)
        return extrapolated(few, *zip(longer, self._further(samples)))

    def _further(self, samples: list[list[int]]) -> list[float]:
        """How often what each longer program has more than the first is in the whole model beyond the first."""
        few, *longer = samples
        rest = Counter(spec.form for layer, spec in enumerate(self.arch.layers) if layer not in few)
        return [
            rest[self.arch.layers[added[0]].form] / len(added)
            for added in ([layer for layer in layers if layer not in few] for layers in longer)
        ]

    def compiled(self, shape: StepShape) -> MeasuredStep:
        """Figures of the program with the layers that there are."""
        mixture = self.arch.experts
        if mixture is None or experts.in_kernel(self.decoder):
            return measured_step(self.lowered(shape))
        blocks = experts.load(mixture, shape.tokens, self.decoder.split.expert_groups).blocks
        step = measured_step(self.lowered(shape), blocks)
        each = experts.block_flops(self.decoder, mixture, shape.tokens)
        more = (blocks - 1) * len(self.arch.layers_of_experts) * each
        return replace(step, flops=step.flops + more)


def extrapolated(base: MeasuredStep, *longer: tuple[MeasuredStep, float]) -> MeasuredStep:
    """A step that has so many times what each longer one has more than `base`."""
    values = {}
    for field in fields(MeasuredStep):
        own, more = getattr(base, field.name), [(getattr(step, field.name), times) for step, times in longer]
        if field.name == "seconds":
            values[field.name] = own + sum(value for value, _ in more)
        else:
            values[field.name] = max(own + sum((value - own) * times for value, times in more), 0)
    return MeasuredStep(**values)


def measured_step(lowered: jax.stages.Lowered, blocks: float = 1) -> MeasuredStep:
    program, module, seconds = compiled(lowered)
    sizes = argument_bytes(module)
    return MeasuredStep.of(
        program,
        module,
        seconds,
        blocks,
        weights=sizes["weights"],
        lookup=sizes["lookup"],
        kv_cache=sizes["caches"],
        cycles_everything=traffic.count(module, 1, blocks).cycles,
    )


def argument_bytes(module: hlo.Module) -> dict[str, int]:
    """Bytes of the step's arguments on each device, by name, with the padding of their layouts.

    `lookup` is the table of the layers' own embeddings, and that of the model's if the logits have another one.
    """
    sizes: dict[str, int] = defaultdict(int)
    tied = True
    for parameter in module.entry.parameters.values():
        name = parameter.line.partition('op_name="')[2].partition('"')[0].replace("\\'", "'")
        size = sum(array.nbytes for array in parameter.arrays)
        sizes[name.partition("[")[0].partition(".")[0]] += size
        for table in ("embed", "extra_embed"):
            if name.startswith(f"weights['{table}']"):
                sizes[table] += size
        tied = tied and not name.startswith("weights['lm_head']")
    sizes["lookup"] = sizes["extra_embed"] + (0 if tied else sizes["embed"])
    return sizes
