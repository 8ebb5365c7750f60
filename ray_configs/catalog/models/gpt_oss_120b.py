"""gpt-oss 120b from a copy of its checkpoint in the bucket; its experts of 4 bits become int8."""

from ray_configs.cloud import Bucket, GoogleCloud
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service

service = Service(
    name="gpt-oss-120b",
    applications=(
        Application(
            config=LLMConfig(
                model="/gcs/gpt-oss-120b",
                slice="v6e:2x4:8t",
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
