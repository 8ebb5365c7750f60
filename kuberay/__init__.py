"""Typed configs -> Kubernetes: what is rendered, checked and applied."""
