"""The command `podslice`, a thin layer over the other packages."""
