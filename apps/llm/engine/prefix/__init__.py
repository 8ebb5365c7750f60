"""The pages of the KV cache: who holds them, and what of them can be found again, on the devices and in host memory."""
