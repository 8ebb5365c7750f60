"""What every JAX program needs, whatever it computes.

programs            the list of programs that an engine compiles, and a count of what is compiled later
stored_programs/    compiled programs in files, sealed, for starts that compile nothing
program_cache       JAX's compile cache on disk, which damage does not stop
quantization        int8 weights with one scale per output channel
layout              a model's devices: DP and TP
distributed         the mesh of them, over one process or several
collectives         exchanges between them
reading             parameters from a checkpoint into this host's memory
row_ranges          which rows of a checkpoint's tensors a parameter has
checkpoint_formats  quantized tensors as the hub ships them
model_folder        a model's files: in a local folder, on the hub, in a bucket; no JAX
safetensors_header  what a file's header may say
"""
