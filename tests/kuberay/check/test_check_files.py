"""Files and objects around manifests: parts of kustomizations, empty files, and configuration that only looks alike."""

from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from kuberay.check import check, parse_yaml, read_yaml
from kuberay.commandline import app
from tests.kuberay.check import good_manifests as good

KUSTOMIZATION = """\
resources: [deployment.yaml]
patches:
- path: more-memory.yaml
  target: {kind: Deployment}
- path: steps/json6902.yaml
- patch: |
    - {op: remove, path: /spec/replicas}
patchesStrategicMerge: [replicas.yaml]
configMapGenerator:
- name: settings
  files: [server.yaml=settings.yaml]
"""
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: server}
spec:
  selector: {matchLabels: {app: server}}
  template:
    metadata: {labels: {app: server}}
    spec:
      containers:
      - {name: server, image: "server:1.0"}
"""
PARTS = {
    "more-memory.yaml": DEPLOYMENT.split("  selector")[0] + "  template: {spec: {containers: [{name: server}]}}\n",
    "steps/json6902.yaml": "- {op: add, path: /spec/replicas, value: 2}\n",
    "replicas.yaml": DEPLOYMENT.split("spec:")[0] + "spec: {replicas: 3}\n",
    "settings.yaml": "threads: 4\n",
}


def folder(tmp_path: Path, **more: str) -> Path:
    files = {"kustomization.yaml": KUSTOMIZATION, "deployment.yaml": DEPLOYMENT, **PARTS, **more}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def checked(*arguments: Any) -> Result:
    return CliRunner().invoke(app, ["check", *map(str, arguments)])


def test_patches_of_a_kustomization_are_skipped(tmp_path: Path) -> None:
    result = checked(folder(tmp_path))
    assert result.exit_code == 0, result.output
    skipped = [
        line.split(":")[0].removeprefix(f"{tmp_path}/") for line in result.output.splitlines() if "skipped" in line
    ]
    assert skipped == ["kustomization.yaml", "more-memory.yaml", "replicas.yaml", "settings.yaml"]
    assert "kubectl kustomize" in result.output
    assert ": error: " not in result.output and ": warning: " not in result.output


@pytest.mark.parametrize("part", PARTS)
def test_a_patch_by_its_own_name_is_skipped_too(tmp_path: Path, part: str) -> None:
    result = checked(folder(tmp_path) / part)
    assert (result.exit_code, "kustomization.yaml names it as a part" in result.output) == (0, True)


def test_what_the_kustomization_takes_whole_is_checked(tmp_path: Path) -> None:
    spoilt = DEPLOYMENT.replace("containers:", "container:")
    result = checked(folder(tmp_path, **{"deployment.yaml": spoilt}))
    assert result.exit_code == 1
    assert "deployment.yaml:9: error: Deployment/server spec.template.spec.container" in result.output


def test_a_broken_kustomization_hides_nothing(tmp_path: Path) -> None:
    result = checked(folder(tmp_path, **{"kustomization.yaml": "patches: [\n"}) / "replicas.yaml")
    assert (result.exit_code, "selector is required" in result.output) == (1, True)


@pytest.mark.parametrize("text", ["", "# rendered by a command that failed\n", "---\n---\n"])
def test_a_file_without_objects_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "service.yaml"
    path.write_text(text)
    for source in (path, tmp_path):
        result = checked(source)
        assert (result.exit_code, "holds no object" in result.output) == (1, True)


CLAIMED = """\
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: servers}
spec:
  leaderWorkerTemplate:
    size: 2
    volumeClaimTemplates:
    - metadata: {name: models}
    workerTemplate:
      spec:
        containers:
        - {name: server, image: "server:1.0", volumeMounts: [{name: models, mountPath: /models}]}
---
apiVersion: jobset.x-k8s.io/v1alpha2
kind: JobSet
metadata: {name: training}
spec:
  volumeClaimPolicies:
  - templates:
    - metadata: {name: data}
  replicatedJobs:
  - name: workers
    template:
      spec:
        template:
          spec:
            restartPolicy: Never
            containers:
            - {name: trainer, image: "trainer:1.0", volumeMounts: [{name: data, mountPath: /data}]}
"""


def test_volumes_that_controllers_claim() -> None:
    assert [f for f in check(parse_yaml(CLAIMED, "m.yaml")) if f.severity != "note"] == []
    found = check(parse_yaml(CLAIMED.replace("{name: data}", "{name: date}"), "m.yaml"))
    assert [(f.rule, f.instead) for f in found if f.severity != "note"] == [("volume", "mount date")]


def two_containers(first: dict[str, Any], second: dict[str, Any]) -> list[Any]:
    objects = good.deployment()
    containers = objects[0]["spec"]["template"]["spec"]["containers"]
    containers[0]["ports"] = [first]
    containers.append({"name": "sidecar", "image": "proxy:1.0", "ports": [second]})
    return objects


def test_two_containers_may_share_a_port_name_but_no_number() -> None:
    metrics = {"name": "metrics", "containerPort": 8080}
    assert good.grave(two_containers(metrics, {**metrics, "containerPort": 8081})) == []
    good.expect(two_containers(metrics, metrics), "duplicate-port", "warning", "ports[0].containerPort", "8080")


def test_unreadable_files_of_a_kustomization_stay_unread(tmp_path: Path) -> None:
    """A JSON patch is a list, which is no object: read alone, it is refused."""
    with pytest.raises(ValueError, match="a list, not an object"):
        read_yaml(folder(tmp_path) / "steps" / "json6902.yaml")
