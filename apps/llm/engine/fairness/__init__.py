"""Fairness between callers: limits and admission (`admission`), and weighted fair queueing (`accounts`, `backlog`)."""
