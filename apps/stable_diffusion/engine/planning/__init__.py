"""What Stable Diffusion's programs need and cost on a TPU slice, from the compiler, without a TPU or a checkpoint."""
