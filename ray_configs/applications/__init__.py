"""What the configs of several applications share, and what is known of their models."""
