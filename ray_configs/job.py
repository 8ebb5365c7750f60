"""A job: a command that runs to its end, on one host or on all hosts of a slice."""

from pydantic import Field, model_validator

from ray_configs.capacity import Capacity, OnDemand
from ray_configs.cluster.deployed import MAX_NAME, MAX_NAME_MULTI_HOST, Deployed
from ray_configs.cluster.overlay import ContainerOverlay, PodOverlay
from ray_configs.cluster.release import image
from ray_configs.cluster.workers import WorkerGroup, group_name, refuse_unsold
from ray_configs.observability import Observability
from ray_configs.tpu import SliceField

MAX_INDEXED_JOB_NAME = 57
"""Host names of an Indexed Job's Pods are NAME-INDEX, a DNS label of 63 characters at most."""


class Job(Deployed):
    """Rendered as a Job (one host), an Indexed Job with a headless Service (several), or a RayJob (`ray=True`)."""

    command: tuple[str, ...] = Field(min_length=1)
    """Program and arguments; every host runs it. With `ray`, the driver: it runs once, on the head."""
    slice: SliceField | None = None
    """The TPU slice that it runs on; None: CPUs."""
    slices: int = Field(1, ge=1)
    """Number of slices of a Ray job; other jobs run on one."""
    capacity: Capacity = OnDemand()
    """How the slice is bought."""
    ray: bool = False
    """Run it in a Ray cluster of its own, deleted when the job ends."""
    image: str | None = None
    """Container image; None: the project's own for language models, which has jax[tpu] and Ray."""
    pod: PodOverlay = Field(default_factory=dict)
    """Merged into the Pod template of its hosts last, as `kubectl patch` does; `head.pod` is for a Ray job's head and
    submitter."""
    container: ContainerOverlay = Field(default_factory=dict)
    """Merged into the container of its hosts last."""
    retries: int = Field(0, ge=0, le=100)
    """Restarts after a failure. On several hosts this needs ray=True: they can only restart together."""
    max_run_hours: float = Field(24, gt=0)
    """Hours after which it is stopped and counts as failed."""
    keep_hours: float = Field(24, ge=0)
    """Hours that the finished job remains for inspection (a RayJob: until it is deleted). Its machines are released at
    once."""
    cpus: int = Field(2, ge=1)
    """CPUs of a Pod without TPUs; on a slice, the machine's are used."""
    memory_gb: int = Field(8, ge=1)
    """Memory of a Pod without TPUs, 10^9 bytes."""
    scratch_gb: int = Field(10, ge=1)
    """Local disk that a Pod may fill, 10^9 bytes."""
    observability: Observability = Observability(pod_monitoring=False)
    """Metrics and logs of a Ray job's cluster."""

    @model_validator(mode="after")
    def _placeable(self) -> "Job":
        refuse_unsold(self.slice, self.capacity)
        if self.ray and self.slice is not None and (refusal := self.slice.ray_refusal):
            raise ValueError(f"{refusal}. Without ray=True the slice can be used")
        if self.slices > 1 and not self.ray:
            raise ValueError("slices above 1 need ray=True: a Kubernetes Job has the hosts of one slice")
        if self.retries and self.hosts > 1 and not self.ray:
            raise ValueError(
                "retries must be 0 on a multi-host slice, whose hosts a Kubernetes Job cannot restart together; "
                "set ray=True to allow retries"
            )
        return self

    @model_validator(mode="after")
    def _no_boards(self) -> "Job":
        for field in ("dashboards", "alerts"):
            if getattr(self.observability, field):
                raise ValueError(
                    f"observability.{field} is for services, whose metrics it shows; leave it out of a job"
                )
        return self

    @model_validator(mode="after")
    def _name_fits(self) -> "Job":
        several = self.hosts > 1
        most = (MAX_NAME_MULTI_HOST if several else MAX_NAME) if self.ray else (MAX_INDEXED_JOB_NAME if several else 63)
        if len(self.name) > most:
            raise ValueError(
                f"name {self.name!r} has {len(self.name)} characters; its Pods' names leave room for {most}"
            )
        return self

    @property
    def clusters_at_once(self) -> int:
        """Ray clusters that exist at a time; only a service's upgrade has two."""
        return 1

    @property
    def hosts(self) -> int:
        """Hosts of one slice."""
        return self.slice.hosts if self.slice else 1

    @property
    def container_image(self) -> str:
        return self.image or image("llm", self.cloud.project)

    @property
    def worker_groups(self) -> tuple[WorkerGroup, ...]:
        """The job's only worker group."""
        count = self.slices
        return (
            WorkerGroup(
                name=group_name(self.slice),
                slice=self.slice,
                capacity=self.capacity,
                image=self.container_image,
                minimum=count,
                maximum=count,
                cpus=self.cpus,
                scratch_gb=self.scratch_gb,
                pod=self.pod,
                container=self.container,
            ),
        )
