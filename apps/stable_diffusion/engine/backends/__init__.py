"""What makes pictures step by step under one contract, `backend`: JAX programs, or diffusers' torch modules."""
