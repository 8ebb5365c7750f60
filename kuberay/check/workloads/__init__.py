"""Pods of any kind, Jobs and other workloads, and the TPU slices that they are hosts of."""

from kuberay.check.workloads import batch, environment, pods, tpu_pods, tpu_slices  # noqa: F401
