"""Mixtral 8x7B-Instruct in int8, from the Hugging Face hub."""

from ray_configs.cloud import HUGGING_FACE_TOKEN, GoogleCloud
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service

service = Service(
    name="mixtral-8x7b",
    applications=(
        Application(
            config=LLMConfig(
                model="mistralai/Mixtral-8x7B-Instruct-v0.1",
                slice="v6e:2x2:4t",
                min_replicas=1,
                max_replicas=1,
                max_model_len=8192,
                max_batch_size=64,
                quantize_weights="int8",
            )
        ),
    ),
    hugging_face_token=HUGGING_FACE_TOKEN,
    cloud=GoogleCloud(location="us-east5", zones=("us-east5-b",)),
)
