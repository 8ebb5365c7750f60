"""The demo language model, in `model/`. `tools/demo_models/language` in the repository made it."""
