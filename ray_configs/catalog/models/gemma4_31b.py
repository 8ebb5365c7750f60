"""Gemma 4 31B-it, text alone, in int8, from the Hugging Face hub."""

from ray_configs.cloud import HUGGING_FACE_TOKEN, GoogleCloud
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service

service = Service(
    name="gemma4-31b",
    applications=(
        Application(
            config=LLMConfig(
                model="google/gemma-4-31b-it",
                slice="v6e:2x4:8t",
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
