"""Plans one Stable Diffusion config on one slice: compiles its programs, counts their work, divides by peak rates."""

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from apps.arrays.model_folder import CheckpointError
from apps.arrays.programs import Key, ProgramSpec
from apps.plan import topology, traffic
from apps.plan.hlo import Module
from apps.plan.measured import KernelCost, Measured, compiled, run_time
from apps.plan.report import core_notes, run_fields
from apps.plan.stable_diffusion import known
from apps.plan.stable_diffusion.known import Configs
from apps.plan.stable_diffusion.report import ImagePlan, Program, Rate
from apps.stable_diffusion.engine.backends.assembly import programs_of
from apps.stable_diffusion.engine.backends.program_list import ProgramList
from apps.stable_diffusion.engine.conditioning.chat_prompts import POSITIONS
from apps.stable_diffusion.engine.controlnets.loaded import control_programs
from apps.stable_diffusion.engine.ldm.opening import open_checkpoint
from apps.stable_diffusion.engine.loras.room import LoraRoom
from apps.stable_diffusion.engine.model import attention
from apps.stable_diffusion.engine.model.pipelines import kind_with
from ray_configs.stable_diffusion import StableDiffusionConfig
from ray_configs.tpu import TpuSlice
from ray_configs.tpu.peaks import Peaks

Tell = Callable[[str], None]


@dataclass(frozen=True)
class PictureWorkload:
    """The workload to plan for."""

    config: StableDiffusionConfig
    slice: TpuSlice
    size: str
    pictures: tuple[int, ...] = (1, 2, 4, 8)
    """Batch sizes per chip to compile. Each UNet takes minutes to compile."""


def find_configs(model: str) -> tuple[Configs, str]:
    """The components' configs, and a sentence that says where they were found.

    Raises:
        CheckpointError: the model cannot be read and is not a known one.
    """
    name = known.find(model)
    try:
        checkpoint = open_checkpoint(model)
        return {part: checkpoint.config(part) for part in checkpoint.components}, f"the checkpoint {model}"
    except Exception as error:  # remote file systems raise their clients' own exceptions
        if name is not None:
            return known.MODELS[name], f"the table of published models, as {name}"
        raise CheckpointError(
            f"{error} To plan without the checkpoint, name a published model: {', '.join(known.MODELS)}"
        ) from error


@dataclass(frozen=True)
class PicturePrograms:
    """The programs of a workload, on a slice that need not exist."""

    workload: PictureWorkload
    specs: Mapping[Key, ProgramSpec]
    size: tuple[int, int]
    """Width and height in pixels."""
    group: Hashable
    """Its denoising programs' own name: see `Denoiser.group`."""
    batches: tuple[int, ...]
    """Pictures of each denoising program, all chips together."""
    guided: bool
    weights: int
    """Bytes of all components' weights, and of the room for LoRAs, on each device."""
    loras: int
    """Bytes of those in the denoising programs' arguments."""
    control: Key | None
    """The program of a ControlNet, for the most pictures."""
    nothing_added: int
    """Bytes of the arrays that say that no ControlNet is used, for batches of all sizes."""

    @classmethod
    def of(cls, workload: PictureWorkload, configs: Configs) -> "PicturePrograms":
        """Lists the programs, without compiling.

        Raises:
            ValueError: the model cannot make pictures of this size.
            NoCompiler: there is no TPU compiler, or it does not know the slice.
        """
        config, slice = workload.config, workload.slice
        width, height = (int(side) for side in workload.size.split("x"))
        size, kind, dtype = (width, height), kind_with(configs), jnp.dtype(config.dtype)
        lengths = tuple(configs[name].get("max_position_embeddings", 77) for name in kind.text_encoders)
        programs = programs_of(
            kind,
            configs,
            (size,),
            (POSITIONS,) if kind.flow else lengths,
            mesh=topology.mesh(slice, "data", len(topology.devices(slice))),
            attention="flash",
            dtype=dtype,
            guided=kind.guided(config.guidance_scale),
            chunks=config.prompt_chunks,
        )
        forms = programs.forms(size)
        batches = tuple(count * slice.chips for count in workload.pictures)
        rooms = LoraRoom.of(config)
        controls, own, nothing = None, 0, 0
        if config.controlnets:
            controls, files = control_programs(config.controlnets, configs.get("unet", {}), programs)
            own = sum(_shard_bytes(controls.forms()[controls.kinds.index(each.arch)]) for each in files.values())
            nothing = sum(_shard_bytes(controls.added(size, b)) for b in batches)
        every = ProgramList(programs, (size,), batches, rooms, controls)
        specs = {spec.key: spec for spec in every.listed()}
        group = programs.denoiser.group(size)
        loras = None if rooms is None else programs.low_rank(forms, rooms)
        pool, texts = (0, 0) if loras is None else (_shard_bytes(loras.pool), _shard_bytes(loras.texts))
        weights = _shard_bytes(forms) + pool + texts + own
        control = None if controls is None else ("control", size, batches[-1], 0)
        return cls(workload, specs, size, group, batches, programs.guided, weights, pool, control, nothing)

    def measured(self, key: Key) -> tuple[Measured, KernelCost]:
        """Compiles a program: the compiler's figures, and its attention kernels' cost."""
        program, module, seconds = compiled(self.specs[key].lowered())
        return Measured.of(program, module, seconds), attention_kernels(module)


def plan(workload: PictureWorkload, tell: Tell = lambda _: None) -> ImagePlan:
    """Compiles the denoising step for each batch size, the decoder and the text encoder.

    Raises:
        CheckpointError: the model cannot be found, or is of another kind.
        ValueError: the model cannot make pictures of this size.
        NoCompiler: there is no TPU compiler, or it does not know the slice.
    """
    config, slice = workload.config, workload.slice
    configs, source = find_configs(config.model)
    devices = topology.devices(slice)
    cores = len(devices) // slice.chips
    programs = PicturePrograms.of(workload, configs)
    peaks = Peaks.of(slice, len(devices))
    size, weights = programs.size, programs.weights

    def program(key: Key, name: str, pictures: float) -> Program:
        tell(f"compiling {name}")
        return _reported(programs, key, name, pictures, peaks)

    text = program(("text",), "text encoder", 1)
    decoder = program(("decode", size), "VAE decoder", 1)
    denoising = [
        program(("denoise", programs.group, b), f"step, {count} a chip", count / cores)
        for b, count in zip(programs.batches, workload.pictures)
    ]
    control = None
    if programs.control is not None:
        control = program(
            programs.control, f"ControlNet, {workload.pictures[-1]} a chip", workload.pictures[-1] / cores
        )
    others = [decoder, text, *([] if control is None else [control])]
    usable = topology.usable_hbm(slice)
    rates = [
        _rate(count, denoising[: i + 1], others, programs, usable, cores) for i, count in enumerate(workload.pictures)
    ]
    return ImagePlan(
        model=config.model,
        configs_from=source,
        slice=str(slice),
        chips=slice.chips,
        devices_per_chip=cores,
        size=workload.size,
        dtype=config.dtype,
        guided=programs.guided,
        steps=config.num_inference_steps,
        weights_gib=weights / 2**30,
        usable_gib=usable / 2**30,
        denoising=denoising,
        decoder=decoder,
        text_encoder=text,
        control=control,
        rates=rates,
        notes=_notes(workload, source, cores, rates),
    )


def _reported(programs: PicturePrograms, key: Key, name: str, pictures: float, peaks: Peaks) -> Program:
    measured, kernel = programs.measured(key)
    weights = _shard_bytes(programs.specs[key].arguments[0])  # they come first
    weights += programs.loras if key[0] == "denoise" else 0
    return Program(
        **run_fields(measured, [kernel], run_time(measured, [kernel], peaks)),
        name=name,
        pictures=pictures,
        weights_gib=weights / 2**30,
        inputs_gib=max(0, measured.arguments - weights) / 2**30,
        temporaries_gib=measured.temporaries / 2**30,
        code_gib=measured.code / 2**30,
        kernels=int(measured.kernels),
        compile_s=measured.seconds,
    )


def _shard_bytes(forms: Any) -> int:
    """Bytes on each device."""
    shards = ((leaf.sharding.shard_shape(leaf.shape), leaf.dtype.itemsize) for leaf in jax.tree.leaves(forms))
    return sum(math.prod(shape) * itemsize for shape, itemsize in shards)


def attention_kernels(module: Module) -> KernelCost:
    """Analytic cost of a program's attention kernels, which declare their useful work and their HBM traffic.

    Each head of a tile multiplies with the whole tile. A language model's kernel, which a text encoder has, declares
    none of it: over one prompt it does not count.
    """
    moved = computed = 0.0
    for computation in module.computations.values():
        for instruction in computation.instructions:
            if f'"{traffic.KERNEL}"' not in instruction.line:
                continue
            flops, scores, bytes_ = (
                instruction.number(key) or 0 for key in ("flops", "transcendentals", "bytes_accessed")
            )
            if not scores:
                continue
            batch, positions, _ = instruction.arrays[0].dims
            _, width = attention.tile(scores // (batch * positions**2), flops // (4 * scores))
            moved += bytes_
            computed += 4 * scores * width
    return KernelCost(moved, computed, 0.0, 0.0)


def _rate(
    count: int,
    denoising: list[Program],
    others: list[Program],
    programs: PicturePrograms,
    usable: float,
    cores: int,
) -> Rate:
    """Text encoding and VAE decoding run one picture at a time on each device, denoising steps batched.

    Args:
        denoising: the programs of a replica for so many pictures; the last one is used here.
        others: first the decoder, then the text encoder.
    """
    step, workload, guided = denoising[-1], programs.workload, programs.guided
    decoder, text = others[:2]
    steps, texts = workload.config.num_inference_steps, count * (2 if guided else 1)

    def seconds(part: str) -> float:
        decoding = math.ceil(count / cores) * getattr(decoder, part)
        return steps * getattr(step, part) + decoding + texts * workload.slice.chips * getattr(text, part)

    largest = max(program.inputs_gib + program.temporaries_gib for program in (step, *others))
    kept = (programs.weights + programs.nothing_added) / 2**30
    needed = kept + largest + sum(program.code_gib for program in (*denoising, *others))
    return Rate(
        pictures=count,
        seconds=seconds("estimate_s"),
        per_chip_s=count / seconds("estimate_s"),
        per_chip_s_at_floor=count / seconds("floor_s"),
        hbm_gib=needed * cores,
        fits=needed <= usable / 2**30,
    )


def _notes(workload: PictureWorkload, source: str, cores: int, rates: list[Rate]) -> list[str]:
    best = max(rate.per_chip_s for rate in rates)
    record = known.record(workload.config.model, workload.size, workload.config.num_inference_steps, workload.slice)
    notes = [
        f"The model's sizes are from {source}.",
        "Pictures are decoded one by one on each device, because the decoder's attention over many would be large; "
        "prompts are encoded one by one on every device, and cached.",
    ]
    if record is not None:
        notes.append(
            f"MLPerf measured {record} pictures/s of a chip at this size and number of steps, on four chips of "
            f"{workload.slice.generation}; this plan's best estimate is {best / record:.2f} times that."
        )
    notes += core_notes(workload.slice, cores)
    if (config := workload.config).has_loras:
        notes.append(
            f"Weights include {config.lora_slots} combinations of LoRAs, of a rank of {config.max_lora_rank} each."
        )
    if config.controlnets:
        notes.append(
            "Rates are of pictures without ControlNet. In a step in which a picture has one, it runs over the whole "
            "batch: add its time."
        )
    if workload.config.dtype != "bfloat16":
        notes.append(f"{workload.config.dtype} weights and activations: TPUs are faster with bfloat16.")
    return notes
