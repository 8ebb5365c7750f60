"""AUTOMATIC1111's web UI API: its bodies, what of them is refused, inpainting as it does it, and its lists."""
