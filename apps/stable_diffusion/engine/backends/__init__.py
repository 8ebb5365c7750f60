"""Implementations of the interface in `backend`: JAX programs, and diffusers' torch modules."""
