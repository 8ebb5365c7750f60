"""One model on many devices: how it is laid out over them, and the processes of a slice of several hosts."""
