"""RayServices and their Serve config: upgrades, request routing, replicas and their slices."""

from kuberay.check.serve import arguments, config, cpus, network, routes, services, tpus, vllm  # noqa: F401
