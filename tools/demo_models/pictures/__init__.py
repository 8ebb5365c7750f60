"""The demo text-to-image model: the pictures it learns from, its training and its evaluation.

`python -m tools.demo_models.pictures.train` makes `apps/stable_diffusion/demo/model/` again.
"""
