"""What to run: typed configs, checked before anything starts. Needs pydantic alone."""
