"""Text to tokens and back, and the grammars that answers can be held to."""
