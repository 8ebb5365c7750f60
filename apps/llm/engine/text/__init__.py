"""Tokenizing, detokenizing, grammars that constrain answers, and the prompt of rerankers."""
