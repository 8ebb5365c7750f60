"""Speculation: a step computes a sequence's likely next tokens too, and those that were guessed rightly are kept."""
