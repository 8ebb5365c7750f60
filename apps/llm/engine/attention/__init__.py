"""Attention over the paged KV cache: writes the step's keys and values, then computes each token's attention.

Three implementations of one function, tested against each other: Pallas' ragged paged attention kernel on TPU, native
kernels on CPU (`engine/cpu`), and plain XLA elsewhere; `engine/kernels` chooses. Each owns the layout of its cache; the
rest of the engine knows only page numbers.

spec      the interface of an implementation
sharded   attention with the heads split over a mesh
spans     attention of images' tokens to those after them, over any implementation's cache
"""
