"""What clients send as images becomes what a model's vision tower takes, as transformers' processors do it."""
