"""Client configuration from a kubeconfig or a Pod's service account."""

import os
from pathlib import Path

import yaml
from kubernetes.client import Configuration
from kubernetes.config import ConfigException, list_kube_config_contexts, load_incluster_config, load_kube_config
from kubernetes.config.kube_config import KubeConfigMerger

from kuberay.cluster.errors import ClusterError
from kuberay.cluster.gke import get_credentials

POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
MALFORMED = (ConfigException, yaml.YAMLError, OSError, AttributeError, TypeError, KeyError, ValueError)


def load(context: str | None, kubeconfig: str | None) -> tuple[Configuration, str | None, str]:
    """(configuration, context or None in a Pod, namespace) from kubeconfig, $KUBECONFIG, ~/.kube/config or, if there is
    none of these, this Pod's service account."""
    configuration = Configuration()
    paths = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    there = any(Path(path).expanduser().is_file() for path in paths.split(os.pathsep))
    in_pod = not there and kubeconfig is None and context is None and "KUBERNETES_SERVICE_HOST" in os.environ
    try:
        if in_pod:
            load_incluster_config(configuration)
            return configuration, None, POD_NAMESPACE.read_text().strip()
        load_kube_config(paths, context, configuration, persist_config=False)
        contexts, chosen = list_kube_config_contexts(paths)
        chosen = next((entry for entry in contexts if entry["name"] == context), chosen)
        name, namespace = chosen["name"], chosen["context"].get("namespace") or "default"
        user = KubeConfigMerger(paths).config["users"].get_with_name(chosen["context"]["user"])["user"]
        plugin_failed = "exec" in user and not (configuration.api_key or configuration.cert_file)
    except MALFORMED as error:
        source = "This Pod's service account" if in_pod else f"The kubeconfig {paths}"
        why = f"cannot be used: {' '.join(str(error).split()).removesuffix('.')}" if in_pod or there else "is not there"
        raise ClusterError(
            f"{source} {why}. Choose another file or entry (--kubeconfig, --context), or fetch one: "
            f"`{get_credentials(context)}`."
        ) from error
    if plugin_failed:  # the client only logs its message, and would continue without credentials
        raise ClusterError(
            f"The credential plugin of context {name} failed; its message is above. Install it "
            "(`gcloud components install gke-gcloud-auth-plugin`) or log in again: `gcloud auth login`, then "
            f"`{get_credentials(name)}`."
        )
    return configuration, name, namespace
