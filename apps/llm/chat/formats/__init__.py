"""Call formats of model families: one module each, with the parser and the grammar."""
