"""vLLM for the tests of the second engine, and what its command takes."""
