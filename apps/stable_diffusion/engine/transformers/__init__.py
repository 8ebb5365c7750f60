"""Diffusion transformers: networks over sequences of patches and of a prompt's positions, as functions of weights."""
