"""Answers that survive a lost slice: podslice local examples/spot_slices.py --tiny --kill-slice 0

Llama 3 8B on two Spot slices of two hosts each, behind two routers, whose Pods are on machines that stay.
"""

from ray_configs.capacity import Spot
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service

service = Service(
    name="llama-spot",
    applications=(
        Application(
            config=LLMConfig(model="meta-llama/Meta-Llama-3-8B", slice="v5e:2x4:4t", min_replicas=2, max_replicas=2),
            capacity=Spot(),
        ),
    ),
)
