"""apply, diff, status and delete against a live cluster. Manifests are plain dicts.

    cluster = Cluster.connect(context=None, namespace=None, kubeconfig=None)
    apply(cluster, objects)                  # server-side; if one object is rejected, nothing changes
    print(diff(cluster, objects))            # what apply would change
    print(*describe(observe(cluster, objects)), sep="\\n")
    watch(cluster, objects, show, until_ready=True)
    delete(cluster, objects)

Every failure raises a `ClusterError` whose text says what to do.
"""

from kuberay.cluster.apply import apply
from kuberay.cluster.connection import Cluster
from kuberay.cluster.delete import delete
from kuberay.cluster.diff import diff
from kuberay.cluster.errors import ClusterError, Interrupted
from kuberay.cluster.status import describe, observe, watch
from kuberay.cluster.status.state import State

__all__ = ["Cluster", "ClusterError", "Interrupted", "State", "apply", "delete", "describe", "diff", "observe", "watch"]
