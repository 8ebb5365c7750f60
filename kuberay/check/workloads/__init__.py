"""Pods with TPU chips, the slices they are hosts of, and batch Jobs on slices."""

from kuberay.check.workloads import batch, tpu_environment, tpu_pods, tpu_slices  # noqa: F401
