"""Text encoders: prompts as a denoiser reads them."""
