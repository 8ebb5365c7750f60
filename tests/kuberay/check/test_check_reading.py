"""YAML files: lines of findings, and one clear error for what is no YAML."""

import json
from pathlib import Path

import pytest

from kuberay.check import UnreadableYaml, check, parse_yaml, read_yaml
from kuberay.check.files import unreadable
from kuberay.check.formats import to_lines, to_terminal
from tests.kuberay.check import good_manifests as good

MANIFEST = """\
# Two documents, the first one empty.
---
apiVersion: ray.io/v1
kind: RayService
metadata:
  name: wide
spec:
  upgradeStrategy: {type: None}
  serveConfigV2: |
    # what to serve
    applications:
    - name: llm
      import_path: apps.llm:build
      routeprefix: /
  rayClusterConfig:
    rayVersion: "2.60.0"
    headGroupSpec: &head
      template:
        spec:
          containers:
          - {name: ray-head, image: "rayproject/ray:2.60.0"}
    workerGroupSpecs:
    - groupName: tpu
      replicas: 1
      minReplicas: 1
      maxReplicas: 1
      numOfHost: 4
      template:
        spec:
          nodeSelector:
            cloud.google.com/gke-tpu-accelerator: tpu-v6e-slice
            cloud.google.com/gke-tpu-topology: 2x2
          containers:
          - name: ray-worker
            image: rayproject/ray:2.60.0
            env:
            - name: A
              value: 1
            - name: B
              value: on
            resources:
              limits:
                google.com/tpu: 3
"""


def written(tmp_path: Path, text: str | bytes, name: str = "m.yaml") -> Path:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def test_findings_point_at_lines(tmp_path: Path) -> None:
    path = written(tmp_path, MANIFEST)
    found = {(f.rule, f.line): f for f in check(read_yaml(path)) if f.severity == "error"}
    assert set(found) == {
        ("serve-keys", 14),
        ("unknown-field", 27),
        ("wrong-type", 38),
        ("wrong-type", 40),
        ("tpu-chips", 43),
    }
    assert all(finding.file == str(path) for finding in found.values())
    assert "write numOfHosts" in found["unknown-field", 27].instead
    assert 'write "1", with the quotes' in found["wrong-type", 38].instead
    assert "boolean" in found["wrong-type", 40].why
    assert found["serve-keys", 14].instead == "write route_prefix"


def test_a_missing_field_points_at_its_parent(tmp_path: Path) -> None:
    text = "apiVersion: v1\nkind: Pod\nmetadata:\n  name: a\nspec:\n  containers:\n  - image: a:1\n"
    (finding,) = check(read_yaml(written(tmp_path, text)))
    assert (finding.rule, finding.line) == ("missing-field", 7)


def test_lines_in_text_of_another_style_are_those_of_the_key() -> None:
    text = MANIFEST.replace("|\n    # what to serve\n", ">-\n").replace("    applications:\n    - name", "    - name")
    found = [f for f in check(parse_yaml(text, "m.yaml")) if f.rule == "serve-config"]
    assert [f.line for f in found] == [9]


def test_lists_are_taken_apart_and_json_is_yaml(tmp_path: Path) -> None:
    objects = good.cluster() + good.job()
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects})
    assert [f for f in check(read_yaml(written(tmp_path, text, "m.json"))) if f.severity != "note"] == []
    objects[0]["spec"]["workerGroupSpecs"][0]["numOfHosts"] = 3
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=1)
    (finding,) = check(read_yaml(written(tmp_path, text, "m.json")))
    assert finding.where == "RayCluster/research spec.workerGroupSpecs[0].numOfHosts"
    assert text.splitlines()[(finding.line or 0) - 1].strip() == '"numOfHosts": 3,'
    assert finding.file is not None and finding.file.endswith("m.json")


def test_anchors_aliases_and_merges_are_followed() -> None:
    text = """\
apiVersion: batch/v1
kind: Job
metadata: {name: a}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - &box {name: a, image: "a:1", env: [{name: A, value: b}]}
      - <<: *box
        name: b
"""
    assert check(parse_yaml(text, "m.yaml")) == []


def test_empty_files_hold_nothing(tmp_path: Path) -> None:
    for text in ("", "# nothing\n", "---\n---\n", "null\n"):
        assert read_yaml(written(tmp_path, text)) == []
    assert check([]) == []


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a:\n\tb: 1\n", 2, ["tab", "spaces"]),
        ("a: 1\nb: [1,\nc: 2\n", 2, ["not valid YAML"]),
        ("a: 1\nb:\n  c: 1\n  c: 2\n", 4, ["key c twice"]),
        ("a: b: c\n", 1, ["not valid YAML", "mapping values"]),
        ("a: *none\n", 1, ["undefined alias"]),
        ("metadata:\n  {{- if .Values.x }}\n  name: a\n", 2, ["template", "helm template"]),
        ("just text\n", None, ["a string, not an object"]),
        ("- a\n- b\n", None, ["a list, not an object"]),
        (b"a: \xff\xfeb\n", 1, ["UTF-8"]),
        (b"\x7fELF\0\0", None, ["binary"]),
        ("a: &a [*a]\n", None, []),
        ("a: !!python/object:os.system x\n", None, []),
    ],
)
def test_what_is_no_yaml_is_one_error(tmp_path: Path, text: str | bytes, line: int | None, words: list[str]) -> None:
    path = written(tmp_path, text)
    try:
        check(read_yaml(path))
    except UnreadableYaml as error:
        assert str(error).startswith(f"{path}:{line}: " if line else str(path))
        assert [word for word in words if word not in str(error)] == []
        (found,) = unreadable(error)
        assert (found.severity, found.place.line, found.place.file) == ("error", line, str(path))
    else:
        assert not words


def test_aliases_that_explode(tmp_path: Path) -> None:
    rows = ["a: &a [1, 2, 3, 4, 5, 6, 7, 8, 9]"]
    for before, name in zip("abcdef", "bcdefg", strict=True):
        rows.append(f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]")
    with pytest.raises(UnreadableYaml, match="anchors and aliases"):
        read_yaml(written(tmp_path, "\n".join(rows)))


def test_deep_nesting(tmp_path: Path) -> None:
    for text in ("a: " + "[" * 300 + "]" * 300, "\n".join(" " * depth + "a:" for depth in range(250))):
        with pytest.raises(UnreadableYaml, match="200 levels"):
            read_yaml(written(tmp_path, text))


def test_files_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(UnreadableYaml, match="No such file"):
        read_yaml(tmp_path / "none.yaml")
    with pytest.raises(UnreadableYaml, match="cannot be opened"):
        read_yaml(tmp_path)
    with pytest.raises(UnreadableYaml, match="has 5 MiB"):
        read_yaml(written(tmp_path, b"a" * (5 * 2**20)))


def test_other_encodings(tmp_path: Path) -> None:
    text = "apiVersion: v1\nkind: Pod\nmetadata: {name: ação}\n"
    for encoding in ("utf-8-sig", "utf-16"):
        (found,) = read_yaml(written(tmp_path, text.encode(encoding)))
        assert found["metadata"]["name"] == "ação"


def test_templates_without_quotes_are_placeholders() -> None:
    text = MANIFEST.replace("2x2", "{{ topology }}").replace("google.com/tpu: 3", "google.com/tpu: {{ chips }}")
    text = (
        text.replace("numOfHost: 4", "numOfHosts: $HOSTS")
        .replace("value: 1", "value: a")
        .replace("value: on", "value: b")
    )
    found = check(parse_yaml(text.replace("routeprefix", "route_prefix"), "m.yaml"))
    assert [f.rule for f in found if f.severity == "error"] == []
    (note,) = [f for f in found if f.rule == "placeholder"]
    assert "$HOSTS" in note.why and "gke-tpu-topology" in note.why


def test_tabs_at_the_end_of_a_line_are_fine() -> None:
    assert parse_yaml("kind: Service\t\nspec:\n  type: LoadBalancer \t\n", "m.yaml")[0]["spec"] == {
        "type": "LoadBalancer"
    }


def test_lines_for_people_and_editors(tmp_path: Path) -> None:
    from io import StringIO

    from rich.console import Console

    path = written(tmp_path, MANIFEST)
    found = check(read_yaml(path))
    lines = to_lines(reversed(found))
    assert lines == to_lines(found)
    assert lines[-1].startswith(f"{path}:43: error: RayService/wide spec.rayClusterConfig.workerGroupSpecs[0]")
    assert lines[-1].endswith("[tpu-chips]")
    console = Console(file=StringIO(), width=100)
    console.print(to_terminal(found))
    text = console.file.getvalue()
    assert all(finding.rule in text for finding in found)
    assert "instead: " in text
