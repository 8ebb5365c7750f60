"""The commands that talk to a cluster: apply, diff, status and delete, for manifests that are plain dicts.

    cluster = Cluster.connect(context=None, namespace=None, kubeconfig=None)
    apply(cluster, objects)                  # server-side, all or (if one object is refused) nothing
    print(diff(cluster, objects))            # what apply would change
    print(*describe(observe(cluster, objects)), sep="\\n")
    watch(cluster, objects, show, until_ready=True)
    delete(cluster, objects)

Whatever goes wrong is one `ClusterError` whose text says what to do.

What ran where: no cluster was at hand, so nothing here was run against GKE, KubeRay or any real API server. All of it
runs, through the official client and real HTTP, against the API server double of the tests
(tests/kuberay/cluster/api_server.py), which was written from the Kubernetes API's documentation. What is most likely
to differ on a real cluster are the texts of other people's events and webhooks, which are shown as they come.
"""

from kuberay.cluster.apply import apply
from kuberay.cluster.connection import Applied, Cluster, Outcome
from kuberay.cluster.delete import delete
from kuberay.cluster.diff import diff
from kuberay.cluster.errors import ClusterError, Conflict, Interrupted, Refused
from kuberay.cluster.follow import watch
from kuberay.cluster.state import Phase, State, Workload
from kuberay.cluster.status import describe, observe

__all__ = [
    "Applied",
    "Cluster",
    "ClusterError",
    "Conflict",
    "Interrupted",
    "Outcome",
    "Phase",
    "Refused",
    "State",
    "Workload",
    "apply",
    "delete",
    "describe",
    "diff",
    "observe",
    "watch",
]
