"""A language model's HTTP API: the application, and modules for each dialect (OpenAI, Anthropic, JetStream, Saxml).

A dialect turns its own JSON into a request of `apps.llm.api` and does not import the other dialects. No JAX here.
"""
