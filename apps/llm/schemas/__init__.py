"""JSON schemas of callers, as the grammar library takes them."""
