"""The HTTP layer that all applications share: direct ingress, API keys, bodies, streams, errors, OpenAPI."""
