"""A model that vLLM computes, on slices of two hosts behind routers: podslice plan examples/vllm_engine.py

The same manifests, node pools, checks and routers as for any other; `check` knows `vllm serve`'s arguments.
"""

from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service

service = Service(
    name="glm-vllm",
    applications=(
        Application(
            config=LLMConfig(
                model="zai-org/GLM-4.5-Air",
                engine="vllm",
                slice="v6e:4x4",
                max_model_len=32_768,
                max_batch_size=128,
                max_step_tokens=2048,
                vllm_args={"gpu_memory_utilization": 0.92, "enable_expert_parallel": True},
                min_replicas=2,
                max_replicas=2,
            ),
        ),
    ),
)
