"""Service accounts that Pods name: Pods of one that does not exist are refused."""

from collections.abc import Iterator

from kuberay.check.manifests import Manifest
from kuberay.check.pods import Pod
from kuberay.check.rules import Problem, nearest, note, rule, warning
from kuberay.check.subjects import subjects_of


@rule(Manifest, "service-account", "Kubernetes: admission of service accounts; KubeRay 1.7 makes none that is named")
def service_account(manifest: Manifest) -> Iterator[Problem]:
    """The service account that a Pod names is among the objects, or was made before."""
    nodes = {
        node.text: node
        for subject in subjects_of(manifest)
        if isinstance(subject, Pod) and (node := subject.spec["serviceAccountName"]).text not in (None, "", "default")
    }
    if not nodes:
        return
    known = {
        other.name or ""
        for other in manifest.others
        if other.kind == "ServiceAccount" and other.namespace == manifest.namespace
    }
    for name, node in nodes.items():
        if name in known or name is None:
            continue
        near = nearest(name, known)
        yield (warning if known else note)(
            node,
            f"there is no ServiceAccount {name} among these objects: unless it exists in namespace "
            f"{manifest.namespace} already, the API server refuses the Pods",
            f"write {near}" if near else f"add the ServiceAccount {name}, or make it before",
        )
