"""Plans: whether a config fits its slice and how fast it can be, from the TPU compiler's output, without a TPU.

`topology` describes the devices of a slice to the compiler. `llm` and `stable_diffusion` build the programs that their
engines would run on it, and compile them. `hlo` and `traffic` count the bytes that a compiled program moves; `measured`
adds the compiler's own figures and derives a lower bound on the run time.

`simulation` runs requests on a virtual clock, with the engine's own scheduler and the router's own choice. `workload`
has traces, and the answer to what serves them. `calibration` holds published figures against all of it.
"""
