"""Versions shared by configs, image and manifests. Tests hold them against pyproject.toml and the Dockerfile."""

PODSLICE_VERSION = "0.1.0"
RAY_VERSION = "2.60.0"
REGISTRY = "us-docker.pkg.dev"


def image(name: str, project: str) -> str:
    """The image that the build file of kuberay/image/ pushes for one of its targets."""
    return f"{REGISTRY}/{project}/podslice/{name}:{PODSLICE_VERSION}"
