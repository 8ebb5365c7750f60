"""The plan of a Stable Diffusion model: its text encoders, denoising steps and decoder."""
