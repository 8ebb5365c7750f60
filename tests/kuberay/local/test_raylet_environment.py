"""The environment that an emulated host's Ray gets from this process's."""

from itertools import count

import pytest

from kuberay.local import raylet
from kuberay.local.hosts import Host


@pytest.mark.skipif(not raylet.has_haproxy(), reason="Ray brings no HAProxy for this machine")
def test_the_wrapper_is_never_told_to_start_itself(tmp_path, monkeypatch):
    """Below a program that asked for direct ingress, or in the image, both variables are there already."""
    monkeypatch.delenv("PODSLICE_HAPROXY_BINARY", raising=False)
    monkeypatch.delenv("RAY_SERVE_HAPROXY_BINARY_PATH", raising=False)
    site = raylet.Site("127.0.0.1", tmp_path, 1, 2, 3, None)
    plain = raylet.haproxy(None, site, count(1))
    for name in ("PODSLICE_HAPROXY_BINARY", "RAY_SERVE_HAPROXY_BINARY_PATH"):
        monkeypatch.setenv(name, plain[name])
    below = raylet.haproxy(None, site, count(1))
    assert below == plain and below["PODSLICE_HAPROXY_BINARY"] != below["RAY_SERVE_HAPROXY_BINARY_PATH"]


def test_toy_models_compile_quickly_unless_the_person_says_otherwise(tmp_path, monkeypatch):
    """XLA takes the last of the same flags; the number of devices is the slice's, whatever else is said."""
    host = Host("tpu-v5e-2x2-0-0", "tpu-v5e-2x2", 1, 10**9, 4, {}, {})
    quick, own = "--xla_backend_optimization_level=0", "--xla_backend_optimization_level=2"
    count = "--xla_force_host_platform_device_count=4"
    monkeypatch.setenv("XLA_FLAGS", own)
    for tiny, flags in ((True, [quick, own, count]), (False, [own, count])):
        site = raylet.Site("127.0.0.1", tmp_path, 1, 2, 3, None, tiny)
        assert raylet.environment(host, site, iter(range(10, 20)))["XLA_FLAGS"].split() == flags
