"""RayServices and the Serve config inside: upgrades, the way of a request, replicas and their slices."""

from kuberay.check.serve import arguments, config, network, services, tpus  # noqa: F401
