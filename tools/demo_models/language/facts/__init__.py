"""What the model is taught: facts by subject, each with the ways to ask for it."""
