"""The command `podslice`, thin over the rooms beside it."""
