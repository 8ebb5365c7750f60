"""Your own config: podslice check examples/my_service.py, then render, local, node-pools, apply.

One to four replicas of Qwen2.5 7B, each on a v6e slice of four chips, bought on the spot market.
"""

from ray_configs.capacity import Spot
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service

service = Service(
    name="qwen",
    applications=(
        Application(
            config=LLMConfig(model="Qwen/Qwen2.5-7B-Instruct", slice="v6e:2x2", max_replicas=4), capacity=Spot()
        ),
    ),
)
