"""Qwen3 Coder 480B-A35B in int8, from a copy of its checkpoint in the bucket."""

from ray_configs.cloud import Bucket, GoogleCloud
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service

service = Service(
    name="qwen3-coder-480b",
    applications=(
        Application(
            config=LLMConfig(
                model="/gcs/Qwen3-Coder-480B-A35B-Instruct",
                slice="v6e:4x8",
                min_replicas=1,
                max_replicas=1,
                max_model_len=8192,
                max_batch_size=64,
                quantize_weights="int8",
            )
        ),
    ),
    bucket=Bucket(),
    cloud=GoogleCloud(location="us-east5", zones=("us-east5-b",)),
)
