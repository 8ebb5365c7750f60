"""The model: its architecture and one forward pass."""
