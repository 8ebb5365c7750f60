"""A served language model, as the HTTP dialects, the batches and the cell use it: text, adapters, metrics, traces."""
