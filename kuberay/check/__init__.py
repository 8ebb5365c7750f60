"""Checks Kubernetes manifests before they are applied: finds what KubeRay, GKE's TPU webhook, the API server or Ray
would refuse, and what they would accept although it then hangs.

    from kuberay.check import check, read_yaml
    for finding in check(read_yaml("service.yaml")):
        print(finding.where, finding.why, finding.instead)
"""

from collections.abc import Collection, Iterable
from typing import Any

# Importing rules registers them.
from kuberay.check import files, ray, serve, structure, typed, workloads  # noqa: F401
from kuberay.check.comments import silenced
from kuberay.check.findings import Finding, Severity, ordered
from kuberay.check.manifests import manifests_of
from kuberay.check.reading import UnreadableYaml, parse_yaml, read_yaml
from kuberay.check.rules import RULES, Rule, apply
from kuberay.check.subjects import subjects_of
from kuberay.check.typed.subjects import configured
from ray_configs.job import Job
from ray_configs.service import Service

__all__ = ["RULES", "Finding", "Rule", "Severity", "UnreadableYaml", "check", "ordered", "parse_yaml", "read_yaml"]


def check(
    objects: Iterable[Any], config: object = None, beside: Iterable[object] = (), ignore: Collection[str] = ()
) -> list[Finding]:
    """Returns the findings for these objects by file and line; on one line, the most severe first.

    objects: Kubernetes objects, from `read_yaml` (findings then have lines) or plain dictionaries. A reference to
    another object, such as a Job's to its headless Service, is resolved among them.
    config: the typed config that the objects were rendered from, if any.
    beside: subjects that are not objects, such as skipped files.
    ignore: names of rules to leave out. Comments in the objects' files silence rules too.
    """
    objects = list(objects)
    subjects = [*beside, *([config] if isinstance(config, Service | Job) else ())]
    subjects += configured(config) if isinstance(config, Service) else ()
    subjects += [subject for manifest in manifests_of(objects) for subject in subjects_of(manifest)]
    found, comments = silenced(dict.fromkeys(apply(subjects)), objects)
    return ordered(finding for finding in (*found, *apply(comments)) if finding.rule not in ignore)
