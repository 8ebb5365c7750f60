"""No slice while nobody asks: podslice local examples/from_zero.py --tiny --from-zero

Llama 3 8B on up to two Spot slices of two hosts each. The routers in front are always there: they check keys, and hold
the first request until a slice has come. (The first deployment starts one, from which they learn the model's limits.)
"""

from ray_configs.capacity import Spot
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service

service = Service(
    name="llama-from-zero",
    applications=(
        Application(
            config=LLMConfig(model="meta-llama/Meta-Llama-3-8B", slice="v5e:2x4:4t", min_replicas=0, max_replicas=2),
            capacity=Spot(),
        ),
    ),
)
