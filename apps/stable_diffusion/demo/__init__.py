"""The demo text-to-image model, in `model/`. `tools/demo_models/pictures` in the repository made it."""
