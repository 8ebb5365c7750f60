"""Grammars compiled for the model's tokens: a mask of the tokens that may come next, for each step of an answer."""
