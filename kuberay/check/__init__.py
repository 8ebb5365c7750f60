"""Checks Kubernetes manifests before they are applied: what KubeRay, GKE's TPU webhook, the API server or Ray would
refuse, and what is accepted and then hangs.

    from kuberay.check import check, read_yaml
    for finding in check(read_yaml("service.yaml")):
        print(finding.where, finding.why, finding.instead)
"""

from collections.abc import Collection, Iterable
from typing import Any

# Importing rules registers them.
from kuberay.check import configs, files, ray, serve, structure, workloads  # noqa: F401
from kuberay.check.comments import silenced
from kuberay.check.configs.services import configured
from kuberay.check.findings import Finding, Severity, ordered
from kuberay.check.manifests import manifests_of
from kuberay.check.reading import UnreadableYaml, parse_yaml, read_yaml
from kuberay.check.rules import RULES, Rule, apply
from kuberay.check.subjects import subjects_of
from ray_configs.service import Service

__all__ = ["RULES", "Finding", "Rule", "Severity", "UnreadableYaml", "check", "ordered", "parse_yaml", "read_yaml"]


def check(
    objects: Iterable[Any], config: object = None, beside: Iterable[object] = (), ignore: Collection[str] = ()
) -> list[Finding]:
    """What would go wrong with these objects, gravest first within each line.

    objects: Kubernetes objects, from `read_yaml` (findings then have lines) or as plain dictionaries. What refers to
    another object, such as a Job to its headless Service, is looked for among them.
    config: the typed config that they were rendered from, if they were.
    beside: what was found instead of objects: files that were skipped, for example.
    ignore: names of rules that are to say nothing. Comments in the objects' files silence rules too.
    """
    objects = list(objects)
    subjects = [*beside, *([config, *configured(config)] if isinstance(config, Service) else ())]
    subjects += [subject for manifest in manifests_of(objects) for subject in subjects_of(manifest)]
    found, comments = silenced(dict.fromkeys(apply(subjects)), objects)
    return ordered(finding for finding in (*found, *apply(comments)) if finding.rule not in ignore)
