"""Mixtures of experts: the router, XLA's loop over the experts, and one Pallas kernel for TPU in its place."""
