"""A job that brings Gemma 7B-it's checkpoint from the Hugging Face hub into the bucket; no TPU needed."""

from ray_configs.cloud import HUGGING_FACE_TOKEN, Bucket, GoogleCloud
from ray_configs.job import Job

job = Job(
    name="prepare-gemma-7b-it",
    command=("hf", "download", "google/gemma-7b-it", "--exclude", "*.gguf", "--local-dir", "/gcs/gemma-7b-it"),
    retries=3,
    cpus=4,
    memory_gb=12,
    hugging_face_token=HUGGING_FACE_TOKEN,
    bucket=Bucket(read_only=False),
    cloud=GoogleCloud(location="us-west4", zones=("us-west4-a",)),
)
