"""What KubeRay 1.6 and 1.7 do with a worker group's Pods, in the steps of their reconcilePods.

Nothing is made while Pods of the group are on their way out, and no extra Pod is taken away: with its autoscaler on,
only that names Pods to go (workersToDelete), and of slices of several hosts the whole slice goes with one of them.
"""

from collections import defaultdict
from collections.abc import Callable
from typing import Any

Make = Callable[[str, str | None, int, int], str]


def reconcile(group: dict[str, Any], pods: dict[str, Any], make: Make, delete: Callable[[Any], None]) -> None:
    """One look of the operator at one group. `make(group, replica, index, host)` returns the replica's name."""
    name, hosts = group["groupName"], group["numOfHosts"]
    replicas: dict[str, list[Any]] = defaultdict(list)
    for pod in pods.values():
        if pod.group == name:
            replicas[pod.replica].append(pod)
    for members in replicas.values():
        if len(members) < hosts:  # one was lost: none is left
            for pod in members:
                delete(pod)
            return
    strategy = group.setdefault("scaleStrategy", {})
    doomed = set(strategy.get("workersToDelete") or ())
    for members in replicas.values():
        if doomed & {pod.name for pod in members}:
            for pod in members:
                delete(pod)
            return  # it looks again
    wanted = min(max(group["replicas"], group["minReplicas"]), group["maxReplicas"])
    used = {members[0].index for members in replicas.values()}
    for _ in range(wanted - len(replicas)):
        index = next(i for i in range(len(used) + 1) if i not in used)
        used.add(index)
        replica = None
        for host in range(hosts):
            replica = make(name, replica, index, host)
