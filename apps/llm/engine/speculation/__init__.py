"""Speculative decoding: a step also computes guesses of a sequence's next tokens; the right ones are accepted."""
