"""gcloud commands that add what a cluster lacks, with the cluster's name where the context has it."""

from ray_configs.capacity import KUEUE_VERSION, NEWER_KUEUE_VERSION

REMEDIES = {
    "ray.io": "install the Ray operator add-on: {update} --update-addons=RayOperator=ENABLED",
    "kueue.x-k8s.io": "install Kueue of the version that suits the operator (`python -m kuberay node-pools` chooses): "
    "kubectl apply --server-side -f https://github.com/kubernetes-sigs/kueue/releases/download/"
    f"v{KUEUE_VERSION}/manifests.yaml, or v{NEWER_KUEUE_VERSION} with KubeRay 1.6.1 and 1.6.2",
    "monitoring.googleapis.com": "turn on managed Prometheus: {update} --enable-managed-prometheus",
    "monitoring.coreos.com": "install prometheus-operator, as kube-prometheus-stack does, or set "
    "observability.prometheus google",
    "gateway.networking.k8s.io": "turn on the Gateway API: {update} --gateway-api=standard",
}


def cluster_flags(context: str | None) -> str:
    """`NAME --location=LOCATION --project=PROJECT`, from a context that gcloud wrote; otherwise placeholders."""
    parts = (context or "").split("_")
    if len(parts) == 4 and parts[0] == "gke":
        return f"{parts[3]} --location={parts[2]} --project={parts[1]}"
    return "CLUSTER --location=LOCATION"


def get_credentials(context: str | None) -> str:
    return f"gcloud container clusters get-credentials {cluster_flags(context)}"


def remedy_for_missing(group: str, context: str | None) -> str:
    """How to install this API group in a cluster that lacks it."""
    update = f"gcloud container clusters update {cluster_flags(context)}"
    default = "install what defines it, or look for a misspelt apiVersion or kind"
    return REMEDIES.get(group, default).format(update=update)
