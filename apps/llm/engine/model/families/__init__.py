"""What tells the families of models apart before their decoder is built."""
