"""`python -m apps.stable_diffusion.plan CONFIG`: `python -m apps.plan` for CONFIG's Stable Diffusion application."""

from apps.plan.commandline import command
from ray_configs.stable_diffusion import StableDiffusionConfig

app = command(StableDiffusionConfig)

if __name__ == "__main__":
    app()
