"""RayClusters and RayJobs: what KubeRay, Ray, its autoscaler and Kueue make of them."""

from kuberay.check.ray import clusters, pods, scaling  # noqa: F401
