"""What the lines of a log may be."""
