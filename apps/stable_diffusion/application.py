"""What `serve run` starts: the application for a config, and the one with the demo model.

Importing this is cheap for the one who deploys: JAX, PyTorch and the engine load inside the replica.
"""

from ray import serve

from apps.serving.ingress.direct_ingress import prefer_direct_ingress
from apps.stable_diffusion.server import deployment
from ray_configs.stable_diffusion import StableDiffusionConfig

prefer_direct_ingress()


def build(config: StableDiffusionConfig) -> serve.Application:
    """The application for one config. `serve run` and Serve's YAML pass their arguments through the config."""
    return deployment(config)


app = build(StableDiffusionConfig.demo())
