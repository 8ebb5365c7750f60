"""What every JAX program needs, whatever it computes.

programs            the programs that an engine compiles, and how many it compiles later than that
program_cache       JAX's compile cache on disk, which damage does not stop
model_folder        a model's files: in a local folder, on the hub, in a bucket; no JAX
safetensors_header  what a file's header may say
"""
