"""Gemma 7B-it on two v5e slices of eight chips, from the bucket that the job prepare_gemma_7b_it fills."""

from ray_configs.cloud import Bucket, GoogleCloud
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service

service = Service(
    name="gemma-7b-it",
    applications=(
        Application(
            config=LLMConfig(
                model="/gcs/gemma-7b-it",
                slice="v5e:2x4:8t",
                min_replicas=2,
                max_replicas=2,
                max_model_len=2048,
                max_batch_size=32,
            )
        ),
    ),
    bucket=Bucket(),
    cloud=GoogleCloud(location="us-west4", zones=("us-west4-a",)),
)
