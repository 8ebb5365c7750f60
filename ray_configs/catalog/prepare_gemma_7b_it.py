"""A job that brings Gemma 7B-it from the hub into the bucket, laid out for eight v5e chips; no TPU needed."""

from ray_configs.cloud import HUGGING_FACE_TOKEN, Bucket, GoogleCloud
from ray_configs.job import Job

job = Job(
    name="prepare-gemma-7b-it",
    command=(
        *("python", "-m", "apps.jobs.prepare", "google/gemma-7b-it", "/gcs/gemma-7b-it"),
        *("--slice", "v5e:2x4:8t"),
    ),
    retries=3,
    cpus=4,
    memory_gb=12,
    scratch_gb=40,  # for what is downloaded: 17 GB
    hugging_face_token=HUGGING_FACE_TOKEN,
    bucket=Bucket(read_only=False),
    cloud=GoogleCloud(location="us-west4", zones=("us-west4-a",)),
)
