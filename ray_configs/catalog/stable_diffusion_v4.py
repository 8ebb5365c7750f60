"""Stable Diffusion 1.4 on one to ten v4 slices of four chips."""

from ray_configs.cloud import GoogleCloud
from ray_configs.service import Application, Service
from ray_configs.stable_diffusion import StableDiffusionConfig

service = Service(
    name="stable-diffusion-tpu",
    applications=(
        Application(
            config=StableDiffusionConfig(
                model="CompVis/stable-diffusion-v1-4",
                slice="v4:2x2x1",
                max_replicas=10,
                max_batch_size=16,
            )
        ),
    ),
    cloud=GoogleCloud(location="us-central2-b", cluster="ray-cluster"),
)
