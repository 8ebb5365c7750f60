"""Checks Kubernetes manifests before they are applied: what KubeRay, GKE's TPU webhook, the API server or Ray would
refuse, and what nobody refuses and then hangs.

    from kuberay.check import check, read_yaml
    for finding in check(read_yaml("service.yaml")):
        print(finding.where, finding.why, finding.instead)
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# Importing rules registers them; the order is that of the findings of one line.
from kuberay.check import ray, serve, structure, workloads  # noqa: F401
from kuberay.check.findings import Finding, Severity, ordered, to_lines, to_terminal
from kuberay.check.manifests import manifests_of
from kuberay.check.reading import UnreadableYaml, parse_yaml, read_yaml
from kuberay.check.rules import RULES, Rule, apply
from kuberay.check.structure.schemas import structural_findings
from kuberay.check.subjects import subjects_of

__all__ = [
    "RULES",
    "Finding",
    "Rule",
    "Severity",
    "UnreadableYaml",
    "check",
    "ordered",
    "parse_yaml",
    "read_yaml",
    "to_lines",
    "to_terminal",
]


def check(objects: Iterable[Any], crds: Path | None = None) -> list[Finding]:
    """What would go wrong with these objects, gravest first within each line.

    objects: Kubernetes objects, from `read_yaml` (findings then have lines) or as plain dictionaries. What refers to
    another object, such as a Job to its headless Service, is looked for among them.
    crds: a folder with rayclusters.v1.json, rayservices.v1.json and rayjobs.v1.json, the CRDs' schemas; without it the
    environment variable PODSLICE_KUBERAY_CRDS is taken, and without that a table of KubeRay 1.7's field names.
    """
    folder = crds or (Path(named) if (named := os.environ.get("PODSLICE_KUBERAY_CRDS")) else None)
    manifests = manifests_of(objects)
    findings: list[Finding] = []
    for manifest in manifests:
        findings += structural_findings(manifest, folder)
        findings += apply(subjects_of(manifest))
    return ordered(dict.fromkeys(findings))
