"""Llama 3 8B on two v5e slices of eight chips, weights from the Hugging Face hub (accept its licence first)."""

from ray_configs.cloud import HUGGING_FACE_TOKEN, GoogleCloud
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service

service = Service(
    name="llama3-8b",
    applications=(
        Application(
            config=LLMConfig(
                model="meta-llama/Meta-Llama-3-8B",
                slice="v5e:2x4:8t",
                min_replicas=2,
                max_replicas=2,
                max_model_len=2048,
                max_batch_size=64,
            )
        ),
    ),
    hugging_face_token=HUGGING_FACE_TOKEN,
    cloud=GoogleCloud(location="us-west4", zones=("us-west4-a",)),
)
