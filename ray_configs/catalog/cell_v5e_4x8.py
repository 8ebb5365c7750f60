"""A cell that owns two v5e slices of eight hosts each; models are published onto them while it runs."""

from ray_configs.cell import CellConfig
from ray_configs.cloud import Bucket, GoogleCloud
from ray_configs.exposure import LoadBalancer
from ray_configs.service import Application, Service

service = Service(
    name="cell",
    applications=(
        Application(
            config=CellConfig(
                name="test",
                slice="v5e:4x8",
                min_replicas=2,
                max_replicas=2,
                state_uri="gs://BUCKET_NAME/cell",
                model_roots=("gs://BUCKET_NAME/models",),
            )
        ),
    ),
    exposure=LoadBalancer(port=8888),  # as in Saxml's tutorials; in a shared VPC, set api_keys and admins
    bucket=Bucket(mount=None),
    cloud=GoogleCloud(location="us-west4-a", cluster="saxml"),
)
