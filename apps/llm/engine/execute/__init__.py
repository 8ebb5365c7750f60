"""Runs a model's programs on the devices of this process."""
