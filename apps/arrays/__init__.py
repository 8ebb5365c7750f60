"""What every JAX program needs, whatever it computes.

programs            the list of programs that an engine compiles, and a count of what is compiled later
program_cache       JAX's compile cache on disk, which damage does not stop
model_folder        a model's files: in a local folder, on the hub, in a bucket; no JAX
safetensors_header  what a file's header may say
"""
