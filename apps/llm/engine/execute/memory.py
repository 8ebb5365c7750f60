"""What fits into the memory of devices and hosts."""

import os
from dataclasses import replace
from pathlib import Path

import jax

from apps.arrays import distributed
from apps.llm.engine.execute.programs import EnginePrograms
from apps.llm.engine.execute.readout import BLOCK
from apps.llm.engine.model import params


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


def pages_that_fit(specs: EnginePrograms, max_pages: int) -> int:
    """Pages that fit into the configured share of free memory, at most what a full batch needs (and page 0).

    Args:
        max_pages: of the longest sequence.

    Raises:
        MemoryError: not even one such sequence fits.
    """
    config, mesh, arch = specs.config, specs.mesh, specs.arch
    one = replace(specs, pages=1)
    page_bytes: float = one.bytes_held_by("pages")
    device = mesh.local_devices[0]
    if device.platform == "cpu":
        page_bytes *= len(mesh.local_devices) / mesh.size
        free = free_host_memory("pages") * config.memory_fraction / 2
    else:
        stats = device.memory_stats()
        page_bytes /= mesh.size
        # Working memory of a step: activations and logits of the largest one, with a margin.
        work = 4 * config.max_step_tokens * max(arch.intermediate_size, arch.hidden_size) * 4
        work += 4 * max(config.max_batch_size, BLOCK) * arch.vocab_size * 4
        work += one.bytes_held_by("slots") // mesh.size
        free = (stats["bytes_limit"] - stats["bytes_in_use"]) * config.memory_fraction - work
    # Hosts differ in free memory, and every page takes memory on each of them.
    fit = distributed.least_over_hosts(int(free // page_bytes), mesh)
    most = config.max_batch_size * max_pages + 1
    if fit < max_pages + 1:
        raise MemoryError(
            f"the KV cache has room for {max(fit, 0)} pages of {config.page_size} tokens, less than one "
            f"sequence of {max_pages * config.page_size}: lower max_model_len, quantize weights or the "
            "KV cache to int8, or use a larger slice"
        )
    return min(fit, most)


def free_host_memory(instead: str) -> int:
    """Bytes that this host has left.

    Raises:
        MemoryError: it does not say so. `instead` is the setting that needs no answer.
    """
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise MemoryError(f"/proc/meminfo has no MemAvailable: set `{instead}` in the config")
