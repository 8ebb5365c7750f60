"""What `serve run` starts: the application for a config, and the one with the demo model.

Importing this is cheap for the one who deploys: JAX and the engine load inside the replica.
"""

from ray import serve

from apps.llm.server import deployment
from apps.serving.ingress.direct_ingress import prefer_direct_ingress
from ray_configs.llm import LLMConfig

prefer_direct_ingress()


def build(config: LLMConfig) -> serve.Application:
    """The application for one config. `serve run` and Serve's YAML pass their arguments through LLMConfig."""
    return deployment(config)


app = build(LLMConfig())
