"""Fairness between callers: who may ask for more (`admission`), and whose turn it is (`accounts`)."""
