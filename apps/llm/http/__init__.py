"""A language model's HTTP API: modules for each dialect (OpenAI, Anthropic, JetStream, Saxml), and the app of all.

A dialect turns its own JSON into a request of `apps.llm.api` and knows nothing of the others. No JAX here.
"""
