"""Stable Diffusion without Ray: `Backend` makes pictures step by step, `Engine` batches requests over it."""
