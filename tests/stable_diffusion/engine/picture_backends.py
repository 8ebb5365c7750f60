"""The backends that can be tested here: torch_xla only in its own environment (`make test-torch-xla`)."""

import importlib.util

BACKENDS = ("jax", "torch", *(["torch_xla"] if importlib.util.find_spec("torch_xla") else []))
