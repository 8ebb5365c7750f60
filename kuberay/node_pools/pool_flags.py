"""gcloud's flags for a node pool, by the way that its machines are bought."""

from kuberay.node_pools.bash import flag
from kuberay.node_pools.pools import DEFAULT_DISK_GB, Pool
from ray_configs.capacity import FlexStart, OnDemand, Queued, Reservation, Spot


def create_flags(pool: Pool) -> list[str]:
    """All but the cluster's. With --tpu-topology GKE places the hosts compactly by itself, as a torus needs."""
    flags = [flag("node-locations", pool.zone)] if pool.zone else []
    flags.append(flag("machine-type", pool.machine_type))
    if pool.disk_gb > DEFAULT_DISK_GB:
        flags.append(f"--disk-size={pool.disk_gb}")
    if pool.topology:
        flags.append(flag("tpu-topology", pool.topology))
    if pool.workload_policy:
        flags.append(flag("placement-policy", pool.workload_policy))
    flags.append(f"--num-nodes={pool.nodes}")
    if pool.autoscaled:
        flags += ["--enable-autoscaling", f"--min-nodes={pool.nodes}", f"--max-nodes={pool.max_nodes}"]
    return flags + _capacity_flags(pool)


def _capacity_flags(pool: Pool) -> list[str]:
    match pool.capacity:
        case OnDemand():
            return ["--reservation-affinity=none"]
        case Spot():
            return ["--spot", "--reservation-affinity=none"]
        case Reservation() as reservation:
            return ["--reservation-affinity=specific", flag("reservation", reservation_path(reservation))]
        case FlexStart(max_run_hours=hours):
            return ["--flex-start", *_scheduled(hours)]
        case Queued(max_run_hours=hours):
            return ["--flex-start", "--enable-queued-provisioning", *_scheduled(hours)]


def reservation_path(reservation: Reservation) -> str:
    """Its name, or its path where another project shares it."""
    if reservation.project is None:
        return reservation.name
    return f"projects/{reservation.project}/reservations/{reservation.name}"


def _scheduled(hours: int) -> list[str]:
    """What the Dynamic Workload Scheduler asks for: any zone's stock, no reservation, no repair by replacement."""
    return [
        "--location-policy=ANY",
        "--reservation-affinity=none",
        "--no-enable-autorepair",
        f"--max-run-duration={hours * 3600}s",
    ]
