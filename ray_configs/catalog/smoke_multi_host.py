"""A flex-start job that counts the TPU cores across the two hosts of a slice."""

from ray_configs.capacity import FlexStart
from ray_configs.cloud import GoogleCloud
from ray_configs.job import Job

job = Job(
    name="smoke-multi-host",
    command=("python", "-c", 'import jax; print("TPU cores:", jax.device_count())'),
    slice="v5e:2x4:4t",
    capacity=FlexStart(max_run_hours=1),
    max_run_hours=1,
    cloud=GoogleCloud(location="us-west4", zones=("us-west4-a",)),
)
