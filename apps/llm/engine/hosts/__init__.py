"""The processes of a slice of several hosts: one leads, the others follow in lockstep."""
