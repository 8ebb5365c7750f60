"""Delete: last first, with what it owns, and nothing that podslice did not apply."""

import pytest
from manifests_of_a_service import ACCOUNT, all_of_it, service
from object_store import CORE

from kuberay.cluster.apply import apply
from kuberay.cluster.delete import delete
from kuberay.cluster.errors import ClusterError, Interrupted, Refused


def owned_by(owner, **more):
    reference = {"apiVersion": owner["apiVersion"], "kind": owner["kind"], "name": "o", "uid": owner["metadata"]["uid"]}
    metadata = {"name": "child", "ownerReferences": [reference]} | more
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {}}


def test_in_reverse_order_and_with_what_it_owns(server, cluster):
    apply(cluster, all_of_it())
    server.store.put(owned_by(server.store.find("RayService", "llama")))
    lines: list[str] = []
    assert delete(cluster, all_of_it(), progress=lines.append) == [
        "PodMonitoring llama",
        "RayService llama",
        "ServiceAccount llama",
    ]
    assert "RayService llama: gone" in lines
    assert server.store.find("RayService", "llama") is None
    assert server.store.find("Pod", "child") is None


def test_gone_already(server, cluster):
    lines: list[str] = []
    server.store.kinds = CORE
    assert delete(cluster, all_of_it(), progress=lines.append) == []
    assert lines == [
        "PodMonitoring llama: already gone",
        "RayService llama: already gone",
        "ServiceAccount llama: already gone",
    ]


def test_waits_for_finalizers_and_says_so(server, cluster):
    apply(cluster, [service()])
    live = server.store.find("RayService", "llama")
    live["metadata"]["finalizers"] = ["ray.io/rayservice-finalizer"]
    server.store.put(live)
    lines: list[str] = []

    def operator(line: str) -> None:
        lines.append(line)
        if "waits" in line:
            going = server.store.find("RayService", "llama")
            going["metadata"]["finalizers"] = []
            server.store.put(going)

    delete(cluster, [service()], progress=operator)
    assert lines == [
        "RayService llama: deleting",
        "RayService llama: waits for ray.io/rayservice-finalizer",
        "RayService llama: gone",
    ]


def test_waits_for_what_it_owns(server, cluster):
    apply(cluster, [service()])
    child = server.store.put(owned_by(server.store.find("RayService", "llama"), finalizers=["slow/exit"]))
    lines: list[str] = []

    def kubelet(line: str) -> None:
        lines.append(line)
        if "waits for what it owns" in line:
            going = server.store.find("Pod", "child")
            going["metadata"]["finalizers"] = []
            server.store.put(going)

    delete(cluster, [service()], progress=kubelet)
    assert child["metadata"]["finalizers"] == ["slow/exit"]
    assert "RayService llama: waits for what it owns" in lines


def test_time_runs_out(server, cluster):
    apply(cluster, [service()])
    live = server.store.find("RayService", "llama")
    live["metadata"]["finalizers"] = ["ray.io/rayservice-finalizer"]
    server.store.put(live)
    with pytest.raises(
        ClusterError, match=r"Not gone after 0 s: RayService llama waits for ray.io/rayservice-finalizer"
    ):
        delete(cluster, [service()], timeout_s=0)


def test_without_waiting(server, cluster):
    apply(cluster, [service()])
    live = server.store.find("RayService", "llama")
    live["metadata"]["finalizers"] = ["ray.io/rayservice-finalizer"]
    server.store.put(live)
    assert delete(cluster, [service()], wait=False) == ["RayService llama"]
    assert server.store.find("RayService", "llama")["metadata"]["deletionTimestamp"]


def test_one_of_the_same_name_made_since_is_not_ours(server, cluster):
    apply(cluster, [ACCOUNT])
    live = cluster.get(ACCOUNT)
    server.store.remove(ACCOUNT)
    server.store.put(ACCOUNT)
    with pytest.raises(ClusterError, match="changed by someone else"):
        cluster.delete(live)
    assert server.store.find("ServiceAccount", "llama")


def test_refuses_what_others_applied(server, cluster):
    apply(cluster, [ACCOUNT])
    server.store.put(service(), "helm")
    with pytest.raises(Refused, match=r"RayService llama is managed by helm.*--force") as caught:
        delete(cluster, all_of_it())
    assert "Nothing was deleted" in str(caught.value)
    assert server.store.find("ServiceAccount", "llama")
    assert delete(cluster, all_of_it(), force=True) == ["RayService llama", "ServiceAccount llama"]


def test_interrupt(server, cluster):
    apply(cluster, all_of_it())

    def interrupt(line: str) -> None:
        if line == "RayService llama: deleting":
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=r"goes on deleting: PodMonitoring llama.*Deleting again is safe"):
        delete(cluster, all_of_it(), progress=interrupt)
    delete(cluster, all_of_it())
    assert server.store.find("ServiceAccount", "llama") is None
