"""LoRA: files of it, which of them there are, and the combinations of them that are on the devices."""
