"""LoRA adapters: read from PEFT's files, kept side by side on the devices, picked by each sequence of a step."""
