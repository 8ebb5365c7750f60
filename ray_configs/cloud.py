"""Where on Google Cloud a config runs, and what it may access there."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ray_configs.base import Config, Name

PROJECT_PLACEHOLDER = "PROJECT_ID"
BUCKET_PLACEHOLDER = "BUCKET_NAME"


class GoogleCloud(Config):
    """The project and the GKE cluster. The commands of `node-pools` and the image's name are made from it."""

    project: str = PROJECT_PLACEHOLDER
    """Project id. PROJECT_ID stays a placeholder in the manifests, to be replaced by --project or sed."""
    location: str = "us-central1"
    """Region of a regional cluster, or zone of a zonal one."""
    zones: tuple[str, ...] = ()
    """Zones of the TPU node pools; slices are spread over them in turn. Required where `location` is a region."""
    cluster: Annotated[Name, Field(max_length=40)] = "podslice"
    """Name of the GKE cluster."""
    cluster_version: str | None = None
    """GKE version of the cluster; None: the release channel's default."""
    head_machine_type: str = "n2-standard-8"
    """Machine type of the default pool, for the Ray head and Pods without TPUs."""


class Bucket(Config):
    """A Cloud Storage bucket for checkpoints, compile caches and state."""

    name: str = Field(BUCKET_PLACEHOLDER, min_length=3)
    """Name without gs://. BUCKET_NAME stays a placeholder in the manifests, to be replaced by --bucket or sed."""
    mount: str | None = "/gcs"
    """Folder where GCSFuse mounts it in each Pod; None: no mount, applications read gs:// paths themselves."""
    read_only: bool = True
    """Whether the mount refuses writes; a server only reads checkpoints."""

    @model_validator(mode="after")
    def _plain_name(self) -> "Bucket":
        if self.name.startswith("gs://") or "/" in self.name:
            raise ValueError(f"bucket name {self.name!r} must be the bare name: no gs://, no path")
        if self.mount is not None and not (self.mount.startswith("/") and len(self.mount) > 1):
            raise ValueError(f"mount {self.mount!r} must be an absolute folder, such as /gcs")
        return self


class SecretKey(Config):
    """One entry of a Kubernetes Secret. Its value never appears in a config, manifest or log."""

    secret: str
    """The Secret's name."""
    key: str
    """The entry's name."""


HUGGING_FACE_TOKEN = SecretKey(secret="huggingface-secret", key="HUGGINGFACE_TOKEN")
"""`kubectl create secret generic huggingface-secret --from-literal=HUGGINGFACE_TOKEN=...`: for gated models."""


class Identity(Config):
    """Workload Identity: the Pods' Kubernetes service account acts as an IAM service account."""

    service_account: Annotated[Name, Field(min_length=6, max_length=30)] = "podslice"
    """Name of both: the Kubernetes service account, and NAME@PROJECT.iam.gserviceaccount.com."""
    bucket_role: Literal["roles/storage.objectViewer", "roles/storage.objectUser", "roles/storage.admin"] = (
        "roles/storage.objectUser"
    )
    """What it may do with the bucket: objectViewer reads, objectUser writes too."""
