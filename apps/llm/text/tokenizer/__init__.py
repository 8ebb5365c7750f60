"""Text to tokens and back, for one model: its own tokenizer, held to what a server can stand."""
