"""The JAX engine: tokens in, tokens out. Usable alone from a script; no Ray and no text in it.

`interface.py` is what it offers, `engine.py` tells the life of a request (scheduler, loop, step, executor, sampling).
Beside them:

schedule/     which tokens are computed when: sequences, pages, slots, and the turns that run them
execute/      the compiled programs of a step, their inputs and what is read back
hosts/        the processes of a slice of several hosts
model/        architecture and forward pass
weights/      checkpoints
adapters/     LoRA
attention/    over the paged KV cache, for each platform
cpu/          native kernels for CPUs: attention and matrix products
kernels       which kernels compute on a platform; nothing else of the engine knows those of a CPU
grammar/      what an answer must follow, compiled: masks of the tokens that may come next
speculation/  guesses of an answer's next tokens, and when they pay
fairness/     weighted fair queueing between callers
"""
