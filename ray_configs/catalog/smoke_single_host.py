"""A flex-start job that counts the TPU cores of one host, and has them work together."""

from ray_configs.capacity import FlexStart
from ray_configs.cloud import GoogleCloud
from ray_configs.job import Job

job = Job(
    name="smoke-single-host",
    command=("python", "-m", "apps.jobs.smoke", "--platform", "tpu", "--expect", "4"),
    slice="v5e:2x2",
    capacity=FlexStart(max_run_hours=1),
    max_run_hours=1,
    cloud=GoogleCloud(location="us-west4", zones=("us-west4-a",)),
)
