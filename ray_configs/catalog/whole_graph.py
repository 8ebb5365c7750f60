"""A language model, Stable Diffusion and a cell in one Ray cluster, each on slices of its own."""

from ray_configs.capacity import Spot
from ray_configs.cell import CellConfig
from ray_configs.cloud import HUGGING_FACE_TOKEN, Bucket, GoogleCloud
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service
from ray_configs.stable_diffusion import StableDiffusionConfig

llm = LLMConfig(model="meta-llama/Meta-Llama-3-8B", slice="v5e:2x4:8t", max_model_len=8192, max_replicas=2)
pictures = StableDiffusionConfig(model="stabilityai/sdxl-turbo", slice="v5e:2x2", max_replicas=4)
cell = CellConfig(name="test", slice="v5e:4x8", state_uri="gs://BUCKET_NAME/cell")

service = Service(
    name="podslice",
    applications=(
        Application(config=llm),
        Application(config=pictures, route_prefix="/pictures", capacity=Spot()),
        Application(config=cell, route_prefix="/cell"),
    ),
    hugging_face_token=HUGGING_FACE_TOKEN,
    bucket=Bucket(),
    cloud=GoogleCloud(location="us-west4", zones=("us-west4-a",)),
)
