"""Vision towers: what makes of an image's patches the vectors that stand for it in a prompt."""
