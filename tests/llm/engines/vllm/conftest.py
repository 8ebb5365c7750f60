"""vLLM's CPU build, which `make test-vllm` installs, as the command that engines start."""

import os
from pathlib import Path

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest

from apps.llm.engines.vllm.child import COMMAND

INSTALLED = os.environ.get("PODSLICE_TEST_VLLM")
"""The environment that it is installed in."""

if INSTALLED:
    os.environ[COMMAND] = f"env LD_PRELOAD={INSTALLED}/lib/libiomp5.so {INSTALLED}/bin/vllm"
    # Both cores for each process, whose threads do not spin while others compute; a GiB for its KV cache.
    os.environ |= {"VLLM_CPU_OMP_THREADS_BIND": "0-1", "VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "KMP_BLOCKTIME": "0"}
    os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1"}


@pytest.fixture(autouse=True, scope="session")
def _there_is_one(request: pytest.FixtureRequest) -> None:
    wanted = any(item.get_closest_marker("vllm") for item in request.session.items)
    if wanted and (INSTALLED is None or not Path(INSTALLED, "bin", "vllm").exists()):
        pytest.fail("PODSLICE_TEST_VLLM names no environment with vLLM: run make test-vllm")
