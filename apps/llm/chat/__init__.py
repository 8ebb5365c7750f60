"""A chat apart from any dialect: its messages and tools, and what the model's answer consists of. No JAX here.

`events` is what an answer is made of, `reader` takes it apart while it comes, `formats/` has how each family of models
writes a call, and `grammar` holds an answer to its tools.
"""
