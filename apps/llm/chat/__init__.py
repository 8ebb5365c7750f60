"""Chats, independent of any dialect: messages, tools and the parts of the model's answer. No JAX here.

`events` are the parts of an answer, `reader` parses an answer into them as it streams, `formats/` has each model
family's way of writing calls, and `grammar` constrains an answer to valid calls.
"""
