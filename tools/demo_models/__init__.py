"""The two demo models that the package ships: their training data, training and evaluation."""
