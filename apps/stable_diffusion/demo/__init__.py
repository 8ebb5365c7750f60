"""The demo text-to-image model: the pictures it learns from, its training and its evaluation.

`model/` is what the scripts here made; `python -m apps.stable_diffusion.demo.train` makes it again.
"""
