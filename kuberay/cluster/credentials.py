"""From a kubeconfig, or a Pod's service account, to a client configuration: each way that fails has its own words."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from kubernetes.client import Configuration
from kubernetes.config import ConfigException, load_incluster_config
from kubernetes.config.kube_config import KubeConfigLoader, KubeConfigMerger

from kuberay.cluster.errors import ClusterError
from kuberay.cluster.gke import get_credentials

POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
MALFORMED = (ConfigException, yaml.YAMLError, OSError, AttributeError, TypeError, KeyError, ValueError)


def load(context: str | None, kubeconfig: str | None) -> tuple[Configuration, str | None, str]:
    """A configuration, its context (None in a Pod) and namespace: of the kubeconfig named, else of $KUBECONFIG, else
    ~/.kube/config, else this Pod's service account."""
    configuration = Configuration()
    paths = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    if not any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep) if path):
        if kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            return configuration, None, _in_pod(configuration)
        raise ClusterError(
            f"There is no kubeconfig at {paths}. Fetch one: `{get_credentials(context)}`, or name one: --kubeconfig."
        )
    try:
        merged = KubeConfigMerger(paths).config
        contexts = [entry["name"] for entry in merged.value["contexts"]]
        name = context or merged.value.get("current-context")
        if not name or name not in contexts:
            lack = f"no context {name}" if name else "no current context"
            raise ClusterError(
                f"The kubeconfig {paths} has {lack}; it has: {', '.join(contexts) or 'none'}. "
                f"Choose one with --context, or add it: `{get_credentials(name)}`."
            )
        loader = KubeConfigLoader(config_dict=merged, active_context=name)
        with _plugin_complaints() as complaints:
            loader.load_and_set(configuration)
        namespace = loader.current_context["context"].get("namespace") or "default"
    except MALFORMED as error:
        raise ClusterError(
            f"The kubeconfig {paths} cannot be read: {' '.join(str(error).split())}. Mend it, or move it away and "
            f"fetch a new one: `{get_credentials(None)}`."
        ) from error
    if complaints:
        raise _no_credential(complaints[-1], name)
    return configuration, name, namespace


def _in_pod(configuration: Configuration) -> str:
    try:
        load_incluster_config(configuration)
        return POD_NAMESPACE.read_text().strip()
    except (ConfigException, OSError) as error:
        raise ClusterError(
            f"This Pod's service account cannot be read: {error}. Is automountServiceAccountToken off?"
        ) from error


def _no_credential(complaint: str, context: str) -> ClusterError:
    if "No such file or directory" in complaint:
        advice = "Install the plugin: `gcloud components install gke-gcloud-auth-plugin`."
    else:
        if "NoneType" in complaint:  # the client trips over a plugin that wrote straight to the terminal
            complaint = "its own words are above"
        advice = f"Log in again: `gcloud auth login`, then `{get_credentials(context)}`."
    return ClusterError(f"The credential plugin of context {context} failed: {complaint}. {advice}")


@contextmanager
def _plugin_complaints() -> Iterator[list[str]]:
    """What the client logs, and then ignores, when a credential plugin fails: it would go on as an anonymous user."""
    complaints: list[str] = []

    def keep(record: logging.LogRecord) -> bool:
        complaints.append(" ".join(record.getMessage().split()).rstrip("."))
        return False

    root = logging.getLogger()
    root.addFilter(keep)
    try:
        yield complaints
    finally:
        root.removeFilter(keep)
