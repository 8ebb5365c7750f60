"""What tests of several rooms share: one Ray cluster with Serve, started when the first test asks for it."""

import contextlib
import functools
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.ports import free_port, serve_ports

# Read when Ray is imported. Ray 2.60 guards a new local cluster with a token that it writes into the home directory.
os.environ["RAY_AUTH_MODE"] = "disabled"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ |= {"RAY_worker_niceness": "0"}  # or the processes of this one's cluster wait for those of the other tests
# Ray's Cluster and `ray start` leave their address for all of the machine: `podslice serve` of another test would join.
os.environ.setdefault("RAY_ADDRESS", "local")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# The CPU's kernels, the same for all models: half a minute of both cores where four processes make them at once.
os.environ.setdefault("NUMBA_CACHE_DIR", str(Path(tempfile.gettempdir(), f"podslice-test-kernels-{os.getuid()}")))
# Hypothesis draws the same examples in every run: a suite that draws anew fails now and then on what nobody changed.
# `make test PYTEST_ARGS="--hypothesis-profile default"` draws others.
with contextlib.suppress(ImportError):  # the environment of `make test-torch-xla` has none
    from hypothesis import HealthCheck, settings

    settings.register_profile(
        "same", derandomize=True, database=None, deadline=None, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("same")
# httpx gives up after 5 s, which a request may take on a busy machine.
for _step in ("connect", "read", "write", "pool"):
    setattr(httpx._config.DEFAULT_TIMEOUT_CONFIG, _step, 60.0)
# Each client of httpx, and so each `httpx.get`, reads all certificates, for 30 ms; nothing here speaks TLS with it.
_transports = httpx._transports.default
_transports.create_ssl_context = functools.cache(_transports.create_ssl_context)  # type: ignore[attr-defined]
# A shell's background job, and some CI runners' steps, ignore Ctrl-C, and so would each program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # nohup make test
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

TOGETHER = {
    "services": (
        *("tests/jobs/", "tests/cell/", "tests/clients/test_saxutil_cell", "tests/llm/batch_api/", "tests/llm/serve/"),
        *("tests/llm/client_libraries/", "tests/llm/slice/", "tests/llm/router/deployed/"),
        "tests/serving/ingress/test_scaled_to_zero",
        *("tests/serving/ingress/test_haproxy_dies", "tests/stable_diffusion/serve/"),
        *("tests/kuberay/local/test_lo", "tests/kuberay/local/test_routed_slices", "tests/kuberay/local/drill/test_ki"),
        *("tests/kuberay/local/test_slices_of_hosts", "tests/kuberay/observability/test_with_prometheus"),
        *("tests/podslice/test_another_user", "tests/podslice/test_draining", "tests/podslice/test_supervisor"),
    ),
}
"""Tests that run in one process, one after the other: those that share a Ray cluster, or its machine's memory,
and those that start whole services. Two of these at once are dozens of processes, and a raylet that does not start
within half a minute, which is Ray's own limit, ends its service."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Limits only end what hangs: on a slow machine, what takes a minute alone has taken five beside others."""
    for item in items:
        heavy = any(item.get_closest_marker(name) for name in ("slow", "long", "tpu_compile"))
        if heavy and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(1500))


@pytest.hookimpl(optionalhook=True)  # some of the tests run in environments without pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Gives each group of TOGETHER to one process, and the rest, file by file, to whichever is free."""
    from xdist.scheduler import LoadScopeScheduling

    class ClusterTogether(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            groups = (name for name, paths in TOGETHER.items() if nodeid.startswith(paths))
            return next(groups, nodeid.partition("::")[0])

    return ClusterTogether(config, log)


MOST_MAPPINGS = 20_000
"""Of memory, in this process. Each program that XLA compiles for CPUs takes two; Linux gives a process 65,530, and
without another jaxlib ends it, where it reads a program from the compile cache (seen with 0.10.2)."""


@pytest.fixture(scope="module", autouse=True)
def _programs_are_forgotten() -> Iterator[None]:
    """Those that jitted functions keep for nobody, once there are many."""
    yield
    mappings = Path("/proc/self/maps")
    if "jax" in sys.modules and mappings.exists() and mappings.read_text().count("\n") > MOST_MAPPINGS:
        sys.modules["jax"].clear_caches()
        gc.collect()


@pytest.fixture(scope="session")
def compile_cache() -> str:
    """The machine's folder for the tests' compiled programs, which took a quarter of the CPU time."""
    return str(Path(tempfile.gettempdir(), f"podslice-test-programs-{os.getuid()}"))


@pytest.fixture(scope="session")
def ray_cluster() -> Iterator[str]:
    """Address of a Ray cluster on this machine, with this process connected. Logical CPUs are plenty."""
    os.environ |= serve_ports()
    import ray

    from apps.serving.ingress.direct_ingress import prefer_direct_ingress

    prefer_direct_ingress()
    from apps.serving.private_ray import start_ray  # imports Serve, which reads the environment

    context = start_ray(
        address="local",
        num_cpus=16,
        include_dashboard=False,
        log_to_driver=False,
        namespace="serve",
        object_store_memory=200 * 2**20,
        _system_config={"metrics_report_interval_ms": 1000},
    )
    yield context.address_info["address"]
    ray.shutdown()


@pytest.fixture(scope="session")
def serve_url(ray_cluster: str) -> Iterator[str]:
    """Where Serve's HTTP answers, on a port of its own; each application has its own route prefix under it."""
    from ray import serve

    from apps.serving.private_ray import start_serve

    port = free_port()
    start_serve(http_options={"port": port})
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
