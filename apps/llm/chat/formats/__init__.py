"""How families of models write tool calls: one module for each, to read them and to say them as a grammar."""
