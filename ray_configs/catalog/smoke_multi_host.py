"""A flex-start job that counts the TPU cores across the two hosts of a slice, and has them work together."""

from ray_configs.capacity import FlexStart
from ray_configs.cloud import GoogleCloud
from ray_configs.job import Job

job = Job(
    name="smoke-multi-host",
    command=("python", "-m", "apps.jobs.smoke", "--platform", "tpu", "--expect", "8"),
    slice="v5e:2x4:4t",
    capacity=FlexStart(max_run_hours=1),
    max_run_hours=1,
    cloud=GoogleCloud(location="us-west4", zones=("us-west4-a",)),
)
