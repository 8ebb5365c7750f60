"""A language model's HTTP API: one module for each dialect (OpenAI, JetStream, Saxml), and the app that joins them.

A dialect turns its own JSON into a request of `apps.llm.api` and knows nothing of the others. No JAX here.
"""
