"""The networks of Stable Diffusion as JAX functions, and the checkpoints that their weights come from."""
