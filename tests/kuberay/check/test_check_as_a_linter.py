"""Rules by name: listed, explained, ignored, silenced by a comment, and printed for programs."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from kuberay.check import RULES, catalog, check, parse_yaml
from kuberay.commandline import app

JOB = """\
apiVersion: batch/v1
kind: Job
metadata: {name: convert}
spec:
  template:
    spec:
      restartPolicy: Never
      containers:
      - name: program
        image: registry.example/program:latest
        env:
        - {name: A, value: 1}
"""
IMAGE = "        image: registry.example/program:latest"
PAGE = Path(__file__).parents[3] / "docs" / "rules.md"


def checked(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["check", *map(str, arguments)])


def rules(text: str, **more: object) -> list[str]:
    return [finding.rule for finding in check(parse_yaml(text, "job.yaml"), **more)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def test_the_page_of_rules_is_up_to_date() -> None:
    assert PAGE.read_text() == catalog.page(), "python -m kuberay.check.catalog > docs/rules.md"


def test_list_and_explain() -> None:
    listed = [line.split()[0] for line in checked("--list").output.splitlines()]
    assert listed == sorted(RULES)
    assert "Source: Kubernetes: tags move" in checked("--explain", "image-tag").output
    unknown = checked("--explain", "image-tags")
    assert unknown.exit_code != 0 and "write image-tag" in str(unknown.exception)


def test_ignore_leaves_rules_out(file: Path) -> None:
    assert rules(JOB) == ["image-tag", "wrong-type"]
    result = checked(file, "--ignore", "image-tag", "--ignore", "wrong-type")
    assert (result.exit_code, "no findings" in result.output) == (0, True)
    assert "no rule image" in str(checked(file, "--ignore", "images").exception)


@pytest.mark.parametrize(
    ("comment", "found"),
    [
        (f"{IMAGE}  # podslice: ignore image-tag: the registry pins it", []),
        (f"        # podslice: ignore image-tag: the registry pins it\n        # (see above)\n{IMAGE}", []),
        (f"{IMAGE}  # podslice: ignore image-tag, image: the registry pins it", ["ignore-comment"]),
        (f"{IMAGE}  # podslice: ignore image-tag", ["ignore-comment", "image-tag"]),
        (f"{IMAGE}  # podslice: ignore", ["ignore-comment", "image-tag"]),
        (f"{IMAGE}  # podslice: ignore image-tags: it is pinned", ["ignore-comment", "image-tag"]),
        (f"{IMAGE}\n        # podslice: ignore image-tag: of another line", ["image-tag", "ignore-comment"]),
    ],
)
def test_a_comment_silences_its_line_and_gives_a_reason(comment: str, found: list[str]) -> None:
    assert rules(JOB.replace(IMAGE, comment), ignore=["wrong-type"]) == found


def test_a_comment_inside_the_serve_config() -> None:
    text = (
        "apiVersion: ray.io/v1\nkind: RayService\nmetadata: {name: llm}\nspec:\n"
        "  rayClusterConfig: {rayVersion: 2.60.0}\n  serveConfigV2: |\n"
        "    applications:\n    - import_path: apps.llm:build\n"
        "      routeprefix: /  # podslice: ignore serve-keys: our fork of Serve reads it\n"
    )
    assert "serve-keys" not in rules(text)
    assert "serve-keys" in rules(text.replace(": our fork of Serve reads it", ""))


def test_json_has_the_fields_of_findings(file: Path) -> None:
    result = checked(file, "--format", "json", "--ignore", "image-tag")
    (found,) = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (found["rule"], found["severity"], found["line"], found["file"]) == ("wrong-type", "error", 12, str(file))


def test_sarif_names_rules_and_lines(file: Path) -> None:
    (run,) = json.loads(checked(file, "--format", "sarif").stdout)["runs"]
    assert [rule["id"] for rule in run["tool"]["driver"]["rules"]] == [
        name for name in RULES if name in {"image-tag", "wrong-type"}
    ]
    places = [result["locations"][0]["physicalLocation"] for result in run["results"]]
    assert [(result["ruleId"], result["level"]) for result in run["results"]] == [
        ("image-tag", "note"),
        ("wrong-type", "error"),
    ]
    assert [place["region"]["startLine"] for place in places] == [10, 12]


def test_github_annotates_lines(file: Path) -> None:
    first, second = checked(file, "--format", "github").stdout.splitlines()
    assert first.startswith(f"::notice file={file},line=10,title=image-tag::Job/convert spec.template")
    assert second.startswith(f"::error file={file},line=12,title=wrong-type::") and "Instead%3A" not in second


def test_a_file_that_cannot_be_read_is_a_finding_to_programs(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("a: [1\n")
    result = checked(tmp_path / "a.yaml", "--format", "json")
    assert result.exit_code == 1
    assert [(found["rule"], found["line"]) for found in json.loads(result.stdout)] == [("unreadable", 1)]
