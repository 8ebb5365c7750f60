"""The facts that the model learns, by subject, each with the phrasings that ask for it."""
