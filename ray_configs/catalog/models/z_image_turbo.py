"""Z-Image-Turbo on a v6e slice of eight chips: pictures of a megapixel in nine steps, of five shapes in one batch."""

from ray_configs.cloud import GoogleCloud
from ray_configs.service import Application, Service
from ray_configs.stable_diffusion import StableDiffusionConfig

service = Service(
    name="z-image-turbo",
    applications=(
        Application(
            config=StableDiffusionConfig(
                model="Tongyi-MAI/Z-Image-Turbo",
                slice="v6e:2x4:8t",
                sizes=("1024x1024", "1152x896", "896x1152", "1344x768", "768x1344"),
                num_inference_steps=9,
                guidance_scale=0,
                scheduler="euler",
                max_batch_size=16,
            )
        ),
    ),
    cloud=GoogleCloud(location="us-east5-b", cluster="ray-cluster"),
)
