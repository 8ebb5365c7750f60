"""How HTTP reaches an application, the same for each: Serve's direct ingress, API keys, bodies, streams, errors."""
