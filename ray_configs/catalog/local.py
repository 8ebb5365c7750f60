"""The demo model on CPUs: what `make serve` runs on a laptop, as a service for any cluster with KubeRay."""

from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service

service = Service(name="podslice-local", applications=(Application(config=LLMConfig()),))
