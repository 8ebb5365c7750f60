"""A language model behind HTTP, as a Ray Serve application.

    serve run apps.llm:app                                   # the demo model
    serve run apps.llm:build model=PATH max_batch_size=64    # any other; the fields are LLMConfig's

Importing this is cheap: JAX and the engine load inside the replica.
"""

from ray import serve

from apps.llm.direct_ingress import prefer_direct_ingress
from apps.llm.server import deployment
from ray_configs.llm import LLMConfig

prefer_direct_ingress()


def build(config: LLMConfig) -> serve.Application:
    """The application for one config. `serve run` and Serve's YAML pass their arguments through LLMConfig."""
    return deployment(config)


app = build(LLMConfig())
