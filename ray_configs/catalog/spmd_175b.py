"""Saxml's 175-billion-parameter test model (random int8 weights) on two v5e slices of eight hosts each."""

from ray_configs.cloud import GoogleCloud
from ray_configs.exposure import LoadBalancer
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service

service = Service(
    name="spmd-175b",
    applications=(
        Application(
            config=LLMConfig(
                model="lm_cloud.LmCloudSpmd175B32Test",
                model_id="/sax/test/spmd",
                slice="v5e:4x8",
                min_replicas=2,
                max_replicas=2,
                random_weights=True,
                quantize_weights="int8",
                max_model_len=256,
            )
        ),
    ),
    exposure=LoadBalancer(port=8888),
    cloud=GoogleCloud(location="us-west4-a", cluster="saxml"),
)
