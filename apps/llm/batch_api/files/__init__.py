"""Files in a storage that all replicas share: how they get there, and their metadata."""
