"""How HTTP reaches an application, the same for all: direct ingress, API keys, bodies, streams, errors, OpenAPI."""
