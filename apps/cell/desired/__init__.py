"""A cell's desired state: what it says, where it is kept, and who may change it."""
