"""What services and jobs have in common: where they run, as whom, and what they may access."""

from pydantic import Field

from ray_configs.base import Config, Name
from ray_configs.cloud import Bucket, GoogleCloud, Identity, SecretKey
from ray_configs.cluster.release import RAY_VERSION

MAX_NAME = 47
"""Longest name with Ray: KubeRay appends a random part and the service's kind."""
MAX_NAME_MULTI_HOST = 35
"""GKE's TPU webhook truncates NAME-xxxxx-headless at 50 characters; past that, hosts of a slice would not find each
other."""


class Head(Config):
    """The Ray head's Pod, which runs GCS, the dashboard and Serve's controller; no replica runs on it."""

    cpus: int = Field(2, ge=1)
    """CPUs, as request and limit."""
    memory_gb: int = Field(8, ge=4)
    """10^9 bytes, as request and limit; Ray's own processes take 2 to 4."""


class Deployed(Config):
    """The fields of every service and job."""

    name: Name
    """Name of the RayService, RayJob or Job: at most 47 characters with Ray, 35 with slices of several hosts."""
    cloud: GoogleCloud = GoogleCloud()
    """The project and the cluster that it runs in."""
    namespace: Name = "default"
    """Kubernetes namespace of all its objects."""
    identity: Identity | None = None
    """Workload Identity; None: created where `bucket` needs it."""
    bucket: Bucket | None = None
    """Bucket of checkpoints and state; None: no mount and no access to one."""
    hugging_face_token: SecretKey | None = None
    """Secret entry that becomes HF_TOKEN: needed for gated models."""
    head: Head = Head()
    """Size of the Ray head's Pod."""
    env: dict[str, str] = Field(default_factory=dict)
    """More environment variables of every container. Secrets do not belong here."""
    ray_version: str = RAY_VERSION
    """Ray's version in the images; KubeRay enables features of the cluster by it."""

    @property
    def service_account(self) -> Identity | None:
        return self.identity or (Identity() if self.bucket else None)
