"""Where on Google Cloud a config runs, and what it may access there."""

import re
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, field_validator, model_validator

from ray_configs.base import Config, Name

PROJECT_PLACEHOLDER = "PROJECT_ID"
BUCKET_PLACEHOLDER = "BUCKET_NAME"


def project_id(text: str) -> str:
    """The id of a Google Cloud project, or the placeholder. Raises ValueError for what can be neither."""
    if text != PROJECT_PLACEHOLDER and not re.fullmatch(r"([a-z0-9.-]+:)?[a-z]([-a-z0-9]*[a-z0-9])?", text):
        raise ValueError(
            f"{text!r} is no id of a project: write it as `gcloud projects list` does, in lowercase letters, digits "
            "and hyphens, such as my-project"
        )
    return text


def bucket_name(text: str) -> str:
    """The name of a Cloud Storage bucket, or the placeholder. Raises ValueError for what can be neither."""
    if text.startswith("gs://") or "/" in text:
        raise ValueError(f"bucket name {text!r} must be the bare name: no gs://, no path")
    if text != BUCKET_PLACEHOLDER and not re.fullmatch(r"[a-z0-9]([-_.a-z0-9]*[a-z0-9])?", text):
        raise ValueError(f"{text!r} is no name of a bucket: lowercase letters, digits, hyphens, underscores and dots")
    return text


Day = Literal["MO", "TU", "WE", "TH", "FR", "SA", "SU"]


class MaintenanceWindow(Config):
    """Hours of the week in which GKE may upgrade and repair."""

    start: str = Field("00:00", pattern=r"^([01]\d|2[0-3]):[0-5]\d$")
    """Beginning, HH:MM in UTC."""
    hours: int = Field(6, ge=4, le=24)
    """Length; GKE counts only windows of four hours and more."""
    days: tuple[Day, ...] = ("SA", "SU")
    """Days of the week on which it begins."""

    @model_validator(mode="after")
    def _often_enough(self) -> "MaintenanceWindow":
        """GKE wants 48 hours in any 32 days, in which each weekday comes four times at least."""
        if (given := 4 * self.hours * len(set(self.days))) < 48:
            raise ValueError(
                f"{self.hours} hours on {len(set(self.days))} days of the week are {given} in four weeks, and GKE "
                "wants 48 in 32 days: add days or hours"
            )
        return self

    @property
    def begins(self) -> str:
        """A first beginning, in the past, as gcloud and Terraform take it."""
        return f"2024-01-06T{self.start}:00Z"

    @property
    def ends(self) -> str:
        """The end of that first one."""
        hour, minute = map(int, self.start.split(":"))
        days, hour = divmod(hour + self.hours, 24)
        return f"2024-01-{6 + days:02}T{hour:02}:{minute:02}:00Z"

    @property
    def recurrence(self) -> str:
        """The rule by which it recurs (RFC 5545)."""
        return f"FREQ=WEEKLY;BYDAY={','.join(dict.fromkeys(self.days))}"


class GoogleCloud(Config):
    """The project and the GKE cluster. The commands of `node-pools` and the image's name are made from it."""

    project: Annotated[str, AfterValidator(project_id)] = PROJECT_PLACEHOLDER
    """Project id. PROJECT_ID stays a placeholder in the manifests, to be replaced by --project or sed."""
    location: str = "us-central1"
    """Region of a regional cluster, or zone of a zonal one."""
    zones: tuple[str, ...] = ()
    """Zones of the TPU node pools; slices are spread over them in turn. Required where `location` is a region."""
    cluster: Annotated[Name, Field(max_length=40)] = "podslice"
    """Name of the GKE cluster."""
    cluster_version: str | None = None
    """GKE version of the cluster; None: the release channel's default."""
    release_channel: Literal["rapid", "regular", "stable", "extended"] | None = None
    """Release channel; None: rapid, which has the newest Ray operator, or with `cluster_version` gcloud's default."""
    maintenance: MaintenanceWindow | None = MaintenanceWindow()
    """When GKE may upgrade the cluster and its nodes, which restarts slices; None: at any time."""
    head_machine_type: str = "n2-standard-8"
    """Machine type of the default pool, for the Ray head and Pods without TPUs."""
    network: str | None = Field(None, min_length=1)
    """VPC network: its name, or projects/PROJECT/global/networks/NAME for a shared one; None: `default`."""
    subnetwork: str | None = Field(None, min_length=1)
    """Subnetwork of the cluster, by name or path; None: the network's own in the region."""
    pod_range: str | None = Field(None, min_length=1)
    """Secondary range of the subnetwork for Pods' addresses, by name; None: GKE makes one."""
    service_range: str | None = Field(None, min_length=1)
    """Secondary range of the subnetwork for Services' addresses, by name; None: GKE makes one."""
    private: bool = False
    """Nodes without addresses on the internet; they need Cloud NAT to reach the Hugging Face hub. The control plane is
    then reached by its DNS name, which asks for Google credentials from anywhere."""
    disk_type: str | None = Field(None, min_length=1)
    """Boot disks of all pools, such as pd-balanced or hyperdisk-balanced; None: GKE's default for each machine."""
    cluster_flags: tuple[str, ...] = ()
    """More flags of `gcloud container clusters create`, such as "--enable-shielded-nodes"."""
    pool_flags: tuple[str, ...] = ()
    """More flags of each `gcloud container node-pools create`, such as "--tags=tpu"."""

    @field_validator("cluster_flags", "pool_flags")
    @classmethod
    def _are_flags(cls, flags: tuple[str, ...]) -> tuple[str, ...]:
        for flag in flags:
            if not re.fullmatch(r"--[a-z][a-z0-9-]*(=.*)?", flag, re.DOTALL):
                raise ValueError(f"{flag!r} is no flag of gcloud: write '--NAME' or '--NAME=VALUE', one each")
        return flags

    @model_validator(mode="after")
    def _ranges_of_a_subnetwork(self) -> "GoogleCloud":
        ranges = [field for field in ("pod_range", "service_range") if getattr(self, field)]
        if ranges and self.subnetwork is None:
            raise ValueError(f"{ranges[0]} is a range of a subnetwork: set subnetwork too")
        return self


class Bucket(Config):
    """A Cloud Storage bucket for checkpoints, compile caches and state."""

    name: Annotated[str, AfterValidator(bucket_name)] = Field(BUCKET_PLACEHOLDER, min_length=3)
    """Name without gs://. BUCKET_NAME stays a placeholder in the manifests, to be replaced by --bucket or sed."""
    mount: str | None = "/gcs"
    """Folder where GCSFuse mounts it in each Pod; None: no mount, applications read gs:// paths themselves."""
    read_only: bool = True
    """Whether the mount refuses writes; a server only reads checkpoints."""
    mount_options: tuple[str, ...] = ()
    """More options of GCSFuse, such as "file-cache:max-size-mb:-1" or "only-dir=models". `uid`, `gid` and implicit-dirs
    are set already; another value replaces them."""

    @model_validator(mode="after")
    def _mounted_as_a_folder(self) -> "Bucket":
        for option in self.mount_options:
            if not option or "," in option or option.isspace():
                raise ValueError(f"mount option {option!r} must be one option, without commas")
        if self.mount_options and self.mount is None:
            raise ValueError("mount_options are for a mount: set mount, or leave them out")
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
    create: bool = True
    """Make both, and the binding between them. False: an administrator has, and has bound NAME-head too where a service
    autoscales."""
