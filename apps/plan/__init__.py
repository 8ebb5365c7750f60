"""Does a config fit its slice, and how fast can it be: answered by TPU's compiler, without a TPU.

`topology` finds the devices of a slice that is not there. `llm` and `stable_diffusion` build the programs that their
engines would run on it, and compile them. `hlo` and `traffic` count what a compiled program moves, `measured` adds
the compiler's own figures, and the least time that they allow.
"""
