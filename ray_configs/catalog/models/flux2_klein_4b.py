"""FLUX.2 klein 4B on a v6e slice of eight chips: pictures of a megapixel in four steps, of five shapes in one batch."""

from ray_configs.cloud import GoogleCloud
from ray_configs.service import Application, Service
from ray_configs.stable_diffusion import StableDiffusionConfig

service = Service(
    name="flux2-klein-4b",
    applications=(
        Application(
            config=StableDiffusionConfig(
                model="black-forest-labs/FLUX.2-klein-4B",
                slice="v6e:2x4:8t",
                sizes=("1024x1024", "1152x896", "896x1152", "1344x768", "768x1344"),
                num_inference_steps=4,
                guidance_scale=1,
                scheduler="euler",
                max_batch_size=16,
            )
        ),
    ),
    cloud=GoogleCloud(location="us-east5-b", cluster="ray-cluster"),
)
