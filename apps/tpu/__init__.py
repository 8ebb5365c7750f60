"""TPUs that are not there: their devices for the compiler, what a program compiled for them moves, and their limits."""
