"""Attention on CPU: native kernels, compiled by numba and called by XLA."""
