"""The model: its architecture, where its weights come from, and one forward pass."""
