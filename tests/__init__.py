"""A package, so that no other one of this name is taken for it. What tests share is imported by its whole name."""
