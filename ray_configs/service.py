"""A service: one Ray cluster and the Serve applications in it, with the slices that they need."""

import math

from pydantic import Field, model_validator

from ray_configs.capacity import OnDemand, Queued
from ray_configs.cell import CellConfig
from ray_configs.cloud import SecretKey
from ray_configs.cluster.application import Application
from ray_configs.cluster.deployed import MAX_NAME, MAX_NAME_MULTI_HOST, Deployed
from ray_configs.cluster.fault_tolerance import GcsFaultTolerance
from ray_configs.cluster.release import image
from ray_configs.cluster.workers import PROCESS_SCRATCH_GB, ROUTERS, WorkerGroup, group_name, process_group_name
from ray_configs.exposure import ClusterIP, Exposure
from ray_configs.llm import LLMConfig
from ray_configs.observability import Observability
from ray_configs.upgrade import Incremental, Upgrade

__all__ = ["Application", "GcsFaultTolerance", "Service"]


class Service(Deployed):
    """One Ray cluster and its applications: rendered as a RayService and the objects that it needs."""

    applications: tuple[Application, ...] = Field(min_length=1)
    """What it serves, each under its own route."""
    api_keys: SecretKey | None = None
    """Secret entry that becomes PODSLICE_API_KEYS: KEY or NAME=KEY, comma-separated. None: everyone who reaches the
    service may use it. A cell's ACLs and `admins` tell callers apart by NAME."""
    exposure: Exposure = ClusterIP()
    """How clients outside the cluster reach it."""
    observability: Observability = Observability()
    """Metrics, logs, and who may see the dashboard."""
    upgrade: Upgrade | None = None
    """How a change of image, slices or environment reaches the running service: `NewCluster()` or `Incremental(...)`.

    None: it does not; `python -m kuberay apply --recreate` recreates the service, with downtime."""
    gcs_fault_tolerance: GcsFaultTolerance | None = None
    """A Redis that keeps the service answering while a lost head restarts; None: every replica dies with the head."""
    disruption_budget: int | None = Field(None, ge=1)
    """Slices of each kind (or CPU workers) that node drains, such as upgrades, may take down at a time.

    None: any number. With a budget the head is never drained, unless `gcs_fault_tolerance` keeps its state. Idle
    multi-host slices that a cell keeps count as unavailable and block drains too. GKE respects a budget for at most an
    hour, then drains anyway; machines that fail or are preempted ignore it."""
    priority_class: str | None = Field(None, min_length=1)
    """PriorityClass of all its Pods, which must exist in the cluster: it decides who is evicted under pressure."""
    lock_memory: bool = False
    """Let TPU workers lock unlimited memory, by running them as root with the capability IPC_LOCK.

    Some of Google's guides for v6e do this (`ulimit -l`), others do not. Set it if libtpu reports that it cannot lock
    memory."""

    @model_validator(mode="after")
    def _names_and_routes_differ(self) -> "Service":
        for what, values in (
            ("name", [a.serve_name for a in self.applications]),
            ("route_prefix", [a.route_prefix for a in self.applications]),
        ):
            if twice := sorted({v for v in values if values.count(v) > 1}):
                raise ValueError(f"two applications have {what} {twice[0]!r}; give each its own {what}")
        return self

    @model_validator(mode="after")
    def _one_kind_of_worker_for_a_slice(self) -> "Service":
        """Ray places a replica on any worker with its slice's shape, whatever that worker's image or price."""
        kinds: dict[str, tuple[object, ...]] = {}
        for app in self.applications:
            slice = app.config.slice
            shape = "CPU" if slice is None else f"{slice.generation} {slice.topology}"
            pod = (self._image(app), app.pod, app.container)
            used: dict[str, tuple[object, ...]] = {shape: (slice, app.capacity, *pod, app.zones)}
            if isinstance(app.config, LLMConfig) and app.config.router_count:
                used["router"] = pod
            for shape, kind in used.items():
                if kinds.setdefault(shape, kind) != kind:
                    raise ValueError(
                        f"two applications use {shape} workers of different machine type, capacity, image, zones, pod "
                        "or container; Ray would place either's replicas on both. Give them the same "
                        "(Application(image=...) names one for both), or make two services"
                    )
        return self

    @model_validator(mode="after")
    def _name_fits(self) -> "Service":
        groups = [group for group in self.worker_groups if group.hosts > 1]
        most, why = MAX_NAME, "KubeRay allows for a RayService"
        if groups:
            most, why = (
                MAX_NAME_MULTI_HOST,
                f"the host names of {groups[0].name}, a slice of several hosts, leave room for",
            )
        if len(self.name) > most:
            raise ValueError(f"name {self.name!r} has {len(self.name)} characters, and {most} are what {why}")
        return self

    @model_validator(mode="after")
    def _one_queue(self) -> "Service":
        if len({a.capacity.queue for a in self.applications if isinstance(a.capacity, Queued)}) > 1:
            raise ValueError("a service waits in one Kueue queue as a whole; name the same queue in every application")
        return self

    @model_validator(mode="after")
    def _queued_at_a_fixed_size(self) -> "Service":
        """Kueue admits a workload's first request; what an autoscaler adds later would never be admitted."""
        for app in self.applications:
            if isinstance(app.capacity, Queued) and self.elastic:
                raise ValueError(
                    f"application {app.serve_name!r} has capacity queued, and the service autoscales: Kueue "
                    "gives a service all its machines at once or none. Set max_replicas equal to min_replicas in "
                    "every application, or use capacity flex-start, which adds slices one by one"
                )
        return self

    @model_validator(mode="after")
    def _one_gateway(self) -> "Service":
        if isinstance(self.upgrade, Incremental) and not isinstance(self.exposure, ClusterIP):
            raise ValueError(
                f"exposure {self.exposure.kind} bypasses the Gateway by which upgrade=Incremental(...) shifts traffic "
                f"({self.name}-gateway, created by KubeRay); leave exposure out"
            )
        return self

    @model_validator(mode="after")
    def _cells_apart(self) -> "Service":
        cells = [app.config for app in self.applications if isinstance(app.config, CellConfig)]
        for what, why, values in (
            ("name", "both would serve /sax/{}", [cell.name for cell in cells]),
            ("state_uri", "one cell at a time writes to {}", [cell.state_uri.rstrip("/") for cell in cells]),
        ):
            if twice := sorted({v for v in values if values.count(v) > 1}):
                raise ValueError(
                    f"two cells have {what} {twice[0]!r}, and {why.format(twice[0])}; give each its own "
                    f"CellConfig({what}=...)"
                )
        return self

    @model_validator(mode="after")
    def _admins_hold_keys(self) -> "Service":
        for app in self.applications:
            if isinstance(app.config, CellConfig) and app.config.admins and self.api_keys is None:
                raise ValueError(
                    f"admins of cell {app.config.name!r} are names of API keys, but the service requires none, so "
                    "everyone could publish; set Service(api_keys=SecretKey(...)) with entries NAME=KEY, or leave "
                    "admins out"
                )
        return self

    @model_validator(mode="after")
    def _mounted_models(self) -> "Service":
        for app in self.applications:
            read = {"model": getattr(app.config, "model", "")} | getattr(app.config, "adapters", {})
            for name, path in read.items():
                if path.startswith("/gcs/") and (self.bucket is None or self.bucket.mount != "/gcs"):
                    raise ValueError(
                        f"{name} {path!r} is in a mounted bucket, but the service has none at /gcs; set "
                        "bucket=Bucket(...)"
                    )
        return self

    def is_mounted(self, path: str) -> bool:
        """Whether a path of the Pods is in the bucket that they mount."""
        return self.bucket is not None and self.bucket.mount is not None and path.startswith(f"{self.bucket.mount}/")

    def _image(self, app: Application, engine: bool = True) -> str:
        """Of an application's workers, or of those that have no engine beside them."""
        name = app.config.image_name if engine else app.config.image_name.removesuffix("-vllm")
        return app.image or image(name, self.cloud.project)

    @property
    def head_image(self) -> str:
        """The head builds every application, so any application's image will do: they differ in heavy packages only."""
        return self._image(self.applications[0], engine=False)

    @property
    def drain_s(self) -> int:
        """Longest drain timeout among the applications, in seconds."""
        published = LLMConfig.model_fields["drain_timeout_s"].default
        return math.ceil(max(getattr(app.config, "drain_timeout_s", published) for app in self.applications))

    @property
    def head_account(self) -> str | None:
        """The head's own Kubernetes service account, where workers have one and the service autoscales; else None.

        KubeRay lets an autoscaling head's account change Pods and RayClusters, so workers must not share it."""
        return f"{self.name}-head" if self.service_account and self.elastic else None

    @property
    def worker_groups(self) -> tuple[WorkerGroup, ...]:
        """One group per kind of worker, in the applications' order; a multi-host group is followed by its CPU Pods'.
        The routers' is the last."""
        groups: dict[str, WorkerGroup] = {}

        def add(
            name: str, app: Application, minimum: int, maximum: int, *, chips: bool = True, leads: str | None = None
        ) -> None:
            before = groups.get(name)
            groups[name] = WorkerGroup(
                name=name,
                slice=app.config.slice if chips else None,
                capacity=app.capacity if chips else OnDemand(),
                image=self._image(app, engine=chips),
                minimum=minimum + (before.minimum if before else 0),
                maximum=maximum + (before.maximum if before else 0),
                cpus=max(app.config.worker_cpus, before.cpus if before else 0),
                scratch_gb=max(
                    app.worker_scratch_gb if chips else PROCESS_SCRATCH_GB, before.scratch_gb if before else 0
                ),
                leads=leads,
                pod=app.pod,
                container=app.container,
                zones=app.zones if chips else (),
            )

        for app in self.applications:
            slice, least, most = app.config.slice, app.config.min_replicas, app.config.max_replicas
            add(group_name(slice), app, least, most)
            if slice is not None and slice.hosts > 1:
                always = isinstance(app.config, CellConfig)  # its own processes
                add(process_group_name(slice), app, max(always, least), most, chips=False, leads=group_name(slice))
        for app in self.applications:
            if isinstance(app.config, LLMConfig) and (routers := app.config.router_count):
                add(ROUTERS, app, routers, routers, chips=False)
        return tuple(groups.values())

    @property
    def spans_hosts(self) -> bool:
        """Whether any replica owns a slice of several hosts, and so runs on a CPU Pod beside it."""
        return any(group.hosts > 1 for group in self.worker_groups)

    @property
    def elastic(self) -> bool:
        """Whether the cluster needs an autoscaler."""
        return isinstance(self.upgrade, Incremental) or any(
            group.maximum > group.minimum for group in self.worker_groups
        )

    @property
    def clusters_at_once(self) -> int:
        """Ray clusters that exist during an upgrade, each with its own slices."""
        return 2 if self.upgrade else 1
