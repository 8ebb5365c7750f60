"""The JAX engine: tokens in, tokens out. Usable alone from a script; no Ray and no text in it.

`interface.py` is what it offers, `engine.py` tells the life of a request (scheduler, loop, step, executor, sampling).
Beside them:

model/      architecture, weights and forward pass
attention/  over the paged KV cache, for each platform
cpu/        native kernels for CPUs: attention and matrix products
parallel/   layout over devices, and the processes of a slice of several hosts
grammar/    what an answer must follow, compiled: masks of the tokens that may come next
speculation/  guesses of an answer's next tokens, and when they pay
fairness/   weighted fair queueing between callers
"""
