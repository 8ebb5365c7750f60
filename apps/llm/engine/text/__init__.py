"""Tokenizing, detokenizing, and grammars that constrain answers."""
