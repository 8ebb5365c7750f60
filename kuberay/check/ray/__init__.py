"""RayClusters and RayJobs: what KubeRay, Ray, its autoscaler and Kueue make of them."""

from kuberay.check.ray import groups, scaling  # noqa: F401
