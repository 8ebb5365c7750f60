"""How a slice's machines are bought. Each kind has its own node pool flags, node selectors and tolerations."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from ray_configs.base import Kind, Name

KUEUE_VERSION = "0.16.9"
NEWER_KUEUE_VERSION = "0.19.2"
"""Kueue for KubeRay 1.6.1 and 1.6.2."""
WHY_NO_NEWER_KUEUE = (
    "0.17 and later suspend a RayService through its rayClusterConfig, and KubeRay does not resume the RayCluster "
    "created from it (kueue#11264). Only KubeRay 1.6.1 and 1.6.2 do, and they need 0.17 or later: they immediately "
    "revert what an older Kueue writes into the RayCluster"
)
"""Applies to services only; queued jobs run with newer versions too."""
MAX_RUN_HOURS = 7 * 24
"""Dynamic Workload Scheduler's limit for one run."""


SYSTEM_PODS_S = 15
"""What GKE keeps of a Spot machine's shutdown for its own Pods, after all others."""


class _Kept(Kind):
    """Machines that stay until they are given back."""

    may_go: ClassVar[bool] = False


class _MayGo(Kind):
    """Machines that are taken away while a service runs."""

    may_go: ClassVar[bool] = True


class OnDemand(_Kept):
    """Machines at the list price, if the zone has any free."""

    kind: Literal["on-demand"] = "on-demand"


class Spot(_MayGo):
    """Cheaper machines that can be preempted at any time, with a short notice.

    Kubernetes' grace periods do not prolong it. Sources: GKE's pages on Spot VMs and on node system configuration.
    """

    kind: Literal["spot"] = "spot"
    shutdown_s: Literal[30, 120] = 120
    """Seconds from a preemption's notice to the machine's end, of which GKE keeps the last 15 for its own Pods. 30 is
    GKE's default. 120 is set in the node pool, with GKE 1.35.0-gke.1171000 or later."""

    @property
    def pods_s(self) -> int:
        """Seconds that Pods have to leave a preempted machine."""
        return self.shutdown_s - SYSTEM_PODS_S


class Reservation(_Kept):
    """Machines from a reservation."""

    kind: Literal["reservation"] = "reservation"
    name: str = Field(min_length=1)
    """The reservation's name."""
    project: str | None = None
    """Project that shares the reservation; None: the cluster's own."""


class FlexStart(_MayGo):
    """Machines for at most seven days, as soon as the Dynamic Workload Scheduler has them, without a reservation.

    The node pool scales from zero: a slice is billed once it has been provisioned for the Pods that requested it.
    """

    kind: Literal["flex-start"] = "flex-start"
    max_run_hours: int = Field(MAX_RUN_HOURS, ge=1, le=MAX_RUN_HOURS)
    """Hours after which the machines are reclaimed: an upper bound on the bill."""


class Queued(_MayGo):
    """Flex-start through a Kueue queue: nothing starts until all machines are available.

    A service must have a fixed size (`min_replicas` = `max_replicas`) and the Kueue that fits the cluster's KubeRay:
    0.17 or newer for 1.6.1 and 1.6.2, 0.16 for all others. The node pools' script installs the right one. Jobs run with
    any.
    """

    kind: Literal["queued"] = "queued"
    queue: Name = "podslice"
    """The LocalQueue that the workload waits in."""
    create_queue: bool = True
    """Render the queue too, with its ClusterQueue and ProvisioningRequestConfig; False: the cluster has one."""
    max_run_hours: int = Field(MAX_RUN_HOURS, ge=1, le=MAX_RUN_HOURS)
    """Hours after which the machines are reclaimed."""


Capacity = Annotated[OnDemand | Spot | Reservation | FlexStart | Queued, Field(discriminator="kind")]
