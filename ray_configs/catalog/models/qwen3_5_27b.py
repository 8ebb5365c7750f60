"""Qwen3.5 27B, text alone, in int8, from the Hugging Face hub."""

from ray_configs.cloud import GoogleCloud
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service

service = Service(
    name="qwen3-5-27b",
    applications=(
        Application(
            config=LLMConfig(
                model="Qwen/Qwen3.5-27B",
                slice="v6e:2x2:4t",
                min_replicas=1,
                max_replicas=1,
                max_model_len=8192,
                max_batch_size=64,
                quantize_weights="int8",
            )
        ),
    ),
    cloud=GoogleCloud(location="us-east5", zones=("us-east5-b",)),
)
