"""RayClusters and RayJobs: what KubeRay's operator refuses, and what Ray, its autoscaler and Kueue make of the rest."""

from kuberay.check.ray import clusters, pods, scaling  # noqa: F401
