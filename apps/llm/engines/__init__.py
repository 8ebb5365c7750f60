"""Other engines behind the interface of a token engine, each started as a process of its own."""
