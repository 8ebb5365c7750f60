"""How a slice's machines are bought. Each kind has its own node pool flags, node selectors and tolerations."""

from typing import Annotated, Literal

from pydantic import Field

from ray_configs.base import Kind, Name

KUEUE_VERSION = "0.16.9"
NEWER_KUEUE_VERSION = "0.19.2"
"""The one for KubeRay 1.6.1 and 1.6.2."""
WHY_NO_NEWER_KUEUE = (
    "0.17 and later suspend a RayService by its nested rayClusterConfig, and KubeRay does not resume the cluster that "
    "it made of it (kueue#11264). Only 1.6.1 and 1.6.2 do, and need 0.17 or later: they take back at once what an "
    "older Kueue writes into the cluster"
)
"""Of services alone: queued jobs run with newer ones too."""
MAX_RUN_HOURS = 7 * 24
"""Dynamic Workload Scheduler's limit for one run."""


class OnDemand(Kind):
    """Machines at the list price, if the zone has any free."""

    kind: Literal["on-demand"] = "on-demand"


class Spot(Kind):
    """Cheaper machines that may be taken back at any time, with half a minute's notice."""

    kind: Literal["spot"] = "spot"


class Reservation(Kind):
    """Machines of a reservation."""

    kind: Literal["reservation"] = "reservation"
    name: str = Field(min_length=1)
    """The reservation's name."""
    project: str | None = None
    """The project that shares it; None: the cluster's own."""


class FlexStart(Kind):
    """Machines for at most seven days, as soon as the Dynamic Workload Scheduler has them, without a reservation.

    The node pool scales from zero: a slice costs from when it comes, after its Pods asked for it.
    """

    kind: Literal["flex-start"] = "flex-start"
    max_run_hours: int = Field(MAX_RUN_HOURS, ge=1, le=MAX_RUN_HOURS)
    """Hours after which the machines are taken back: an upper bound on the bill."""


class Queued(Kind):
    """Flex-start through a Kueue queue: nothing starts until all machines are there.

    A service must be of fixed size (`min_replicas` = `max_replicas`), and its cluster must have the Kueue that suits
    its KubeRay: 0.17 or newer for 1.6.1 and 1.6.2, 0.16 for all others. The node pools' script chooses. Jobs run with
    any.
    """

    kind: Literal["queued"] = "queued"
    queue: Name = "podslice"
    """The LocalQueue that the workload waits in."""
    create_queue: bool = True
    """Render the queue too, with its ClusterQueue and ProvisioningRequestConfig; False: the cluster has one."""
    max_run_hours: int = Field(MAX_RUN_HOURS, ge=1, le=MAX_RUN_HOURS)
    """Hours after which the machines are taken back."""


Capacity = Annotated[OnDemand | Spot | Reservation | FlexStart | Queued, Field(discriminator="kind")]
