"""Does a config fit its slice, and how fast can it be: answered by the TPU compiler, without a TPU.

`topology` finds the slice's devices, `program` compiles the engine's own steps for them, `hlo` and `traffic` count what
the compiled programs move, `kernel` adds the attention kernel's share, `capacity` and `floor` work out what fits and
how long a step takes at least, `planner` puts it together, `search` tries other slices.
"""
