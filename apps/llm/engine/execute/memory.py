"""What fits into the memory of devices and hosts."""

import os
from dataclasses import replace
from pathlib import Path

import jax

from apps.arrays import distributed
from apps.arrays.programs import ProgramSet
from apps.llm.engine.execute.programs import EnginePrograms
from apps.llm.engine.execute.readout import BLOCK
from apps.llm.engine.model import params
from ray_configs.llm import EngineConfig


def check_weights_fit(specs: EnginePrograms) -> None:
    """Refuse weights that this machine could never hold: reading them would end the process, and maybe others.

    Raises:
        MemoryError: what they take, and how to take less.
    """
    int8 = specs.config.quantize_weights == "int8"
    abstract = jax.tree.leaves(params.abstract(specs.declared, specs.mesh, specs.decoder.dtype, int8))
    whole = sum(leaf.size * leaf.dtype.itemsize for leaf in abstract)
    needed = whole * len(specs.mesh.local_devices) // specs.mesh.size
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if needed > memory:
        smaller = "or more devices" if int8 else "more devices, or quantize_weights int8"
        raise MemoryError(
            f"the weights that config.json implies take {needed / 2**30:.0f} GiB, but this machine has "
            f"{memory / 2**30:.0f} GiB: use a larger one, {smaller}"
        )


def check_host_cache_fits(config: EngineConfig) -> None:
    """Refuse pages of the prefix cache that this host has no memory for. Raises MemoryError."""
    needed = config.prefix_cache_host_gib * 2**30
    if needed > (free := free_host_memory("prefix_cache_host_gib=0")):
        raise MemoryError(
            f"prefix_cache_host_gib: a DP rank would take {needed / 2**30:.1f} GiB of this host, which has "
            f"{free / 2**30:.1f} GiB left: lower it"
        )


def pages_that_fit(specs: EnginePrograms, prepared: int | None = None, least: ProgramSet | None = None) -> int:
    """Pages of the KV cache, the same on all hosts: what fits into the configured share of free memory.

    Args:
        prepared: pages that programs are prepared for, which are enough if they fit.
        least: see `least_over_hosts`.

    Raises:
        MemoryError: not even one sequence of the longest length fits.
    """
    fit = _room(specs, None)
    if prepared is not None and specs.shapes[0].max_pages < prepared <= fit:
        fit = prepared
    # Hosts differ in free memory, and every page takes memory on each of them.
    return _bounded(specs, distributed.least_over_hosts(fit, specs.mesh, least))


def pages_to_expect(specs: EnginePrograms, free: int | None) -> int:
    """As `pages_that_fit`, before there is anything on the devices, which need not exist.

    Args:
        free: bytes on each device that the weights leave; on a CPU, this host is asked.
    """
    return _bounded(specs, _room(specs, free))


def _bounded(specs: EnginePrograms, fit: int) -> int:
    """At most what a full batch needs (and page 0)."""
    config, max_pages = specs.config, specs.shapes[0].max_pages
    if fit < max_pages + 1:
        raise MemoryError(
            f"the KV cache has room for {max(fit, 0)} pages of {config.page_size} tokens, less than one "
            f"sequence of {max_pages * config.page_size}: lower max_model_len, quantize weights or the "
            "KV cache to int8, or use a larger slice"
        )
    return min(fit, config.max_batch_size * max_pages + 1)


def _room(specs: EnginePrograms, free: int | None) -> int:
    """Pages that fit on this host, or into so many bytes of each device."""
    config, mesh, arch = specs.config, specs.mesh, specs.arch
    one = replace(specs, pages=1)
    page_bytes: float = one.bytes_held_by("pages")
    if mesh.devices.flat[0].platform == "cpu":
        page_bytes *= len(mesh.local_devices) / mesh.size
        return int(free_host_memory("pages") * config.memory_fraction / 2 // page_bytes)
    if free is None:
        stats = mesh.local_devices[0].memory_stats()
        free = stats["bytes_limit"] - stats["bytes_in_use"]
    # Working memory of a step: activations and logits of the largest one, with a margin.
    work = 4 * config.max_step_tokens * max(arch.intermediate_size, arch.hidden_size) * 4
    work += 4 * max(config.max_batch_size, BLOCK) * arch.vocab_size * 4
    if specs.encodings is not None:
        work += specs.encodings.bytes_needed(specs.decoder.dtype.itemsize)
    work += one.bytes_held_by("slots") // mesh.size * (specs.slots + (config.prefix_states or 0)) // specs.slots
    return int((free * config.memory_fraction - work) // (page_bytes / mesh.size))


def free_host_memory(instead: str) -> int:
    """Bytes that this host has left.

    Raises:
        MemoryError: it does not say so. `instead` is the setting that needs no answer.
    """
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise MemoryError(f"/proc/meminfo has no MemAvailable: set `{instead}` in the config")
