"""What services and jobs have in common: where they run, as whom, and what they may access."""

from hashlib import sha256

from pydantic import Field

from ray_configs.base import Config, Name
from ray_configs.cloud import Bucket, GoogleCloud, Identity, SecretKey
from ray_configs.cluster.overlay import ContainerOverlay, PodOverlay
from ray_configs.cluster.release import RAY_VERSION

MAX_LABEL = 63
"""Kubernetes' limit on the characters of a label's value."""
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
    pod: PodOverlay = Field(default_factory=dict)
    """Merged into the head's Pod template last, as `kubectl patch` does: `{"spec": {"imagePullSecrets": [{"name":
    "registry"}]}}`. Containers of other names are sidecars; None deletes a field; tolerations are added."""
    container: ContainerOverlay = Field(default_factory=dict)
    """Merged into the head's container last. Its `securityContext` also becomes that of the autoscaler and of a Ray
    job's submitter."""


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
    env: dict[str, str | SecretKey] = Field(default_factory=dict)
    """More environment variables of every container: text, or an entry of a Secret: `SecretKey(secret=, key=)`."""
    ray_version: str = RAY_VERSION
    """Ray's version in the images; KubeRay enables features of the cluster by it."""

    @property
    def owner(self) -> str:
        """Whose its node pools are: the value of their label and taint. Names of different namespaces differ."""
        value = f"{self.namespace}.{self.name}"
        return (
            value if len(value) <= MAX_LABEL else f"{value[: MAX_LABEL - 7]}-{sha256(value.encode()).hexdigest()[:6]}"
        )

    @property
    def service_account(self) -> Identity | None:
        return self.identity or (Identity() if self.bucket else None)
