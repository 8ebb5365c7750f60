"""What the prefix cache stores and forgets, published as vLLM does, so that others' routers can follow it."""
