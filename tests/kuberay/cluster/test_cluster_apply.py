"""Apply and diff: all or nothing at first sight, conflicts by name, and how far it came when it breaks."""

from copy import deepcopy

import pytest
from manifests_of_a_service import ACCOUNT, SECRET, all_of_it, service
from object_store import CORE

from kuberay.cluster.apply import apply
from kuberay.cluster.connection import Applied, Outcome
from kuberay.cluster.diff import diff
from kuberay.cluster.errors import ClusterError, Conflict, Interrupted, NoNamespace, Refused


def outcomes(applied: list[Applied]) -> list[tuple[str, str]]:
    return [(item.name, item.outcome.value) for item in applied]


def test_created_then_unchanged_then_configured(server, cluster):
    assert outcomes(apply(cluster, all_of_it())) == [
        ("ServiceAccount llama", "created"),
        ("RayService llama", "created"),
        ("PodMonitoring llama", "created"),
    ]
    version = server.store.version
    assert {item.outcome for item in apply(cluster, all_of_it())} == {Outcome.UNCHANGED}
    assert server.store.version == version
    changed = all_of_it()
    changed[1]["spec"]["serveConfigV2"] = "applications: []\n"
    assert [item.outcome for item in apply(cluster, changed)] == ["unchanged", "configured", "unchanged"]
    live = server.store.find("RayService", "llama")
    assert live["metadata"]["generation"] == 2
    assert live["metadata"]["managedFields"][0]["manager"] == "podslice"


def test_the_status_of_a_controller_is_no_change(server, cluster):
    apply(cluster, all_of_it())
    server.store.change(service(), "kuberay-operator", status={"numServeEndpoints": 1})
    assert apply(cluster, [service()])[0].outcome == "unchanged"
    assert server.store.find("RayService", "llama")["status"] == {"numServeEndpoints": 1}


def test_what_is_left_out_goes(server, cluster):
    labelled = service() | {"metadata": {"name": "llama", "labels": {"app": "llama", "team": "night"}}}
    apply(cluster, [labelled])
    apply(cluster, [service()])
    assert server.store.find("RayService", "llama")["metadata"]["labels"] == {"app": "llama"}


def test_dry_run_changes_nothing(server, cluster):
    version = server.store.version
    heard = []
    assert [item.outcome for item in apply(cluster, all_of_it(), dry_run=True, on_applied=heard.append)] == [
        "created"
    ] * 3
    assert len(heard) == 3
    assert server.store.version == version


def test_a_refused_object_changes_nothing(server, cluster):
    server.store.admission.append(
        lambda item: "workers do not fit the topology" if item["kind"] == "PodMonitoring" else None
    )
    with pytest.raises(Refused) as caught:
        apply(cluster, all_of_it())
    assert 'webhook "hook.test" denied the request: workers do not fit the topology' in str(caught.value)
    assert "Nothing was changed" in str(caught.value)
    assert server.store.find("ServiceAccount", "llama") is None


def test_every_refusal_is_told(server, cluster):
    server.store.admission.append(lambda item: f"no {item['kind']}" if item["kind"] != "ServiceAccount" else None)
    with pytest.raises(Refused) as caught:
        apply(cluster, all_of_it())
    assert "no RayService" in str(caught.value)
    assert "no PodMonitoring" in str(caught.value)
    assert "2 of 3 objects were refused" in str(caught.value)


@pytest.mark.parametrize(
    ("api_version", "kind", "says"),
    [
        ("ray.io/v1", "RayService", "--update-addons=RayOperator=ENABLED"),
        ("monitoring.googleapis.com/v1", "PodMonitoring", "--enable-managed-prometheus"),
        ("kueue.x-k8s.io/v1beta1", "LocalQueue", "install Kueue"),
        ("gateway.networking.k8s.io/v1", "Gateway", "--gateway-api=standard"),
        ("example.com/v1", "Thing", "misspelt"),
    ],
)
def test_kinds_that_are_not_installed(server, cluster, api_version, kind, says):
    server.store.kinds = CORE
    with pytest.raises(Refused) as caught:
        apply(cluster, [ACCOUNT, {"apiVersion": api_version, "kind": kind, "metadata": {"name": "x"}, "spec": {}}])
    assert f"does not know {api_version} {kind}" in str(caught.value)
    assert says in str(caught.value)
    assert server.store.find("ServiceAccount", "llama") is None


def test_a_conflict_names_manager_and_fields(server, cluster):
    apply(cluster, all_of_it())
    taken = server.store.find("RayService", "llama")
    taken["spec"]["serveConfigV2"] = "edited: true\n"
    taken["metadata"]["labels"]["app"] = "theirs"
    server.store.put(taken, "kubectl-edit")
    with pytest.raises(Conflict) as caught:
        apply(cluster, all_of_it())
    assert "kubectl-edit owns metadata.labels.app, spec.serveConfigV2" in str(caught.value)
    assert "--force-conflicts" in str(caught.value)
    assert [(item.manager, item.field) for item in caught.value.conflicts] == [
        ("kubectl-edit", "metadata.labels.app"),
        ("kubectl-edit", "spec.serveConfigV2"),
    ]
    assert [item.outcome for item in apply(cluster, all_of_it(), force_conflicts=True)] == [
        "unchanged",
        "configured",
        "unchanged",
    ]
    assert apply(cluster, all_of_it())[1].outcome == "unchanged"  # the fields are ours now


def test_a_field_of_a_list_item_conflicts_alone(server, cluster):
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]}]},
    }
    apply(cluster, [pod])
    theirs = server.store.find("Pod", "p")
    theirs["spec"]["containers"][0]["env"][0]["value"] = "2"
    theirs["spec"]["containers"].append({"name": "sidecar", "image": "mesh"})
    server.store.put(theirs, "injector")
    with pytest.raises(Conflict, match=r'injector owns spec.containers\[name="a"\].env\[name="X"\].value'):
        apply(cluster, [pod])
    theirs = deepcopy(pod)
    theirs["spec"]["containers"][0] |= {"image": "2", "env": [{"name": "X", "value": "2"}]}
    assert apply(cluster, [theirs])[0].outcome == "configured"
    names = [container["name"] for container in server.store.find("Pod", "p")["spec"]["containers"]]
    assert names == ["a", "sidecar"]  # what others added stays


def test_a_namespace_that_is_not_there(cluster):
    with pytest.raises(NoNamespace, match="kubectl create namespace models"):
        apply(cluster, [ACCOUNT | {"metadata": {"name": "llama", "namespace": "models"}}])


def test_a_namespace_that_comes_with_the_objects(server, cluster):
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "models"}}
    account = ACCOUNT | {"metadata": {"name": "llama", "namespace": "models"}}
    assert [item.outcome for item in apply(cluster, [namespace, account])] == ["created", "created"]
    assert server.store.find("ServiceAccount", "llama", "models")


def test_a_webhook_that_takes_no_part_in_dry_runs(server, cluster):
    words = 'admission webhook "hook.test" does not support dry run'
    server.trouble("status", code=400, message=words, method="PATCH", path="rayservices/llama?fieldValidation")
    assert [item.outcome for item in apply(cluster, all_of_it())] == ["created"] * 3


def test_failure_in_the_middle_says_how_far_it_came(server, cluster):
    def break_down(applied: Applied) -> None:
        server.trouble("status", code=503, times=99, path="rayservices")

    with pytest.raises(ClusterError) as caught:
        apply(cluster, all_of_it(), on_applied=break_down)
    said = str(caught.value)
    assert "answered 503" in said
    assert "Applied: ServiceAccount llama." in said
    assert "perhaps applied: RayService llama." in said
    assert "Not applied: PodMonitoring llama." in said
    assert "Applying again is safe" in said
    server.troubles.clear()
    assert [item.outcome for item in apply(cluster, all_of_it())] == ["unchanged", "created", "created"]


def test_interrupt_in_the_middle(cluster):
    def interrupt(applied: Applied) -> None:
        if applied.name.startswith("RayService"):
            raise KeyboardInterrupt

    with pytest.raises(Interrupted, match=r"Applied: ServiceAccount llama, RayService llama\."):
        apply(cluster, all_of_it(), on_applied=interrupt)


def test_diff_is_empty_when_nothing_would_change(server, cluster):
    apply(cluster, all_of_it())
    server.store.change(service(), "kuberay-operator", status={"numServeEndpoints": 1})
    assert diff(cluster, all_of_it()) == ""


def test_diff_shows_the_lines_that_change(server, cluster):
    apply(cluster, all_of_it())
    version = server.store.version
    changed = all_of_it()
    changed[1]["spec"]["serveConfigV2"] = "applications:\n- name: llm\n  import_path: apps.llm:other\n"
    lines = diff(cluster, changed).splitlines()
    assert lines[:2] == ["--- live/RayService llama", "+++ applied/RayService llama"]
    assert [line for line in lines[2:] if line[0] in "+-"] == [
        "-      import_path: apps.llm:build",
        "+      import_path: apps.llm:other",
    ]
    assert not any(word in "".join(lines) for word in ("managedFields", "resourceVersion", "uid", "generation"))
    assert server.store.version == version


def test_diff_of_what_is_not_there(cluster):
    assert "+kind: RayService\n" in diff(cluster, [service()])


def test_diff_masks_secrets(cluster):
    apply(cluster, [SECRET])
    shown = diff(cluster, [SECRET | {"data": {"api-keys": "b3RoZXI="}}])
    assert shown.count("api-keys: '*** (") == 2
    assert "c2VjcmV0" not in shown
    assert "b3RoZXI" not in shown
