"""Status of what is really there: before the operator, without Pods, while they wait."""

import json

import pytest

from kuberay import cluster as client
from tests.kubernetes.cluster.served import (
    NAME,
    RunCommand,
    as_active,
    ray_cluster,
    ray_service,
    rendered,
    there,
    until,
)
from tests.kubernetes.clusters import Cluster


def test_a_service_that_waits(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    objects = rendered()
    status, out, _ = run("status", objects)
    assert status == 1 and out.startswith(f"{NAME} is not applied.")
    run("apply", objects)
    ray_cluster(control_plane, namespace)
    until("its Pods", lambda: len(there(control_plane, namespace, "pods")) == 3)

    def waits() -> bool:
        return run("status", objects)[1].startswith(f"{NAME} waits for capacity: the head needs a node with ")

    until("the scheduler's word", waits)
    out = run("status", objects)[1]
    assert (
        "slice 1 of group tpu-v5e-2x4-8t (tpu-v5-lite-podslice 2x4): needs a node with tpu-v5-lite-podslice 2x4" in out
    )
    status, out, err = run("status", objects, "--wait", "--timeout", "1")
    assert status == 2 and f"Not ready after 1 s: {NAME} waits for capacity" in err


def test_the_operators_word_alone_is_not_enough(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    """It said Ready, the last worker went away, and something still listens on the head."""
    objects = rendered()
    run("apply", objects)
    name = as_active(control_plane, namespace)
    until("its Pods", lambda: len(there(control_plane, namespace, "pods")) == 3)
    at = "2026-01-01T00:00:00Z"
    ready = {
        "type": "Ready",
        "status": "True",
        "reason": "NonZeroServeEndpoints",
        "message": "",
        "lastTransitionTime": at,
    }
    application = {"llm": {"status": "RUNNING", "serveDeploymentStatuses": {"LLMServer": {"status": "HEALTHY"}}}}
    side = {"rayClusterName": name, "applicationStatuses": application}

    class Looking(client.Cluster):
        """The operator would have looked at the endpoints by the time we do."""

        def get(self, manifest):
            found = super().get(manifest)
            if found is not None and found["kind"] == "RayService":
                found["status"] |= {"conditions": [ready], "activeServiceStatus": side}
            return found

    connected = Looking.connect(None, namespace, str(control_plane.kubeconfig))
    state = client.observe(connected, objects)
    assert not state.ready
    assert client.describe(state)[0].startswith(f"{NAME} does not serve (0 of 2 slices serve)")
    with pytest.raises(client.ClusterError, match="Not ready after 1 s"):
        client.watch(connected, objects, lambda state: None, until_ready=True, timeout_s=1)


def test_what_the_operator_refuses(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    objects = [ray_service(rendered())]
    objects[0]["metadata"]["name"] = "a" * 48
    assert run("apply", objects, "--force")[0] == 0
    until("the operator's word", lambda: "was refused by the operator: " in run("status", objects)[1])
    assert run("status", objects, "--wait")[0] == 1  # it would never end


def test_pods_that_the_operator_may_not_make(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    """As with a webhook that denies them: no Pod is there that could say why."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    here = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}}
    specs = {
        "ValidatingAdmissionPolicy": {
            "matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": "false", "message": "no Pods here"}],
        },
        "ValidatingAdmissionPolicyBinding": {
            "policyName": namespace,
            "validationActions": ["Deny"],
            "matchResources": here,
        },
    }
    for kind, spec in specs.items():
        policy = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": kind, "metadata": {"name": namespace}}
        control_plane.kubectl("create", "-f", "-", input=json.dumps(policy | {"spec": spec}))
    pod = ("-n", namespace, "run", "a", "--image=b", "--dry-run=server")
    until("the policy", lambda: control_plane.kubectl(*pod, check=False).returncode)
    objects = [ray_service(rendered())]
    run("apply", objects)
    until("the policy's words", lambda: "does not come up: the operator " in run("status", objects)[1])
    assert "no Pods here" in run("status", objects)[1].splitlines()[0]


def test_however_many_pods_a_handful_of_requests(control_plane: Cluster, namespace: str, run: RunCommand) -> None:
    objects = [ray_service(rendered(replicas=6))]
    run("apply", objects)
    until("its Pods", lambda: len(there(control_plane, namespace, "pods")) == 7)
    connected = client.Cluster.connect(None, namespace, str(control_plane.kubeconfig))
    client.observe(connected, objects)
    sent: list[str] = []
    ask = connected._client.request
    connected._client.request = lambda method, path, *rest, **more: (
        sent.append(path),
        ask(method, path, *rest, **more),
    )[1]
    client.observe(connected, objects)
    assert len(sent) <= 6, sent
