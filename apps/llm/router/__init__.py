"""Which engine gets a request, and what becomes of the request when that engine is gone. No text, no JAX, no chips.

`fleet` is a token engine over others, near or far; `wire` reaches those of other processes.
"""
