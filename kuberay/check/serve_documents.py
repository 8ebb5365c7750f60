"""serveConfigV2: the YAML inside a RayService, as a document of its own that knows its lines in the file."""

import io
from collections.abc import Iterator
from typing import Any

from kuberay.check.manifests import RayCluster
from kuberay.check.nodes import Document, Node


class ServeConfig:
    """The Serve config of a RayService; `node` is what it says, `source` the string that says it."""

    schema = "ServeDeploySchema"
    refused = "Ray Serve refuses the config"

    def __init__(self, cluster: RayCluster, source: Node, node: Node, unreadable: str = "") -> None:
        self.cluster, self.source, self.node = cluster, source, node
        self.unreadable = unreadable
        """Why the string is no YAML, if it is none."""
        self.applications = list(node["applications"])
        self.deployments = [each for application in self.applications for each in application["deployments"]]
        """Of all applications."""
        http, grpc = node["http_options"]["port"], node["grpc_options"]["port"]
        self.http_port = http.number if http.present else 8000
        """Where Serve listens; None where that is yet to be filled in."""
        serves_grpc = bool(node["grpc_options"]["grpc_servicer_functions"].value)
        self.grpc_port = (grpc.number if grpc.present else 9000) if serves_grpc else None
        """Where Serve listens for gRPC, if it does."""
        self.head_only = node["proxy_location"].value == "HeadOnly"
        """Whether the head's proxy is the only one."""


def serve_config(cluster: RayCluster) -> Iterator[ServeConfig]:
    """The Serve config of a cluster's RayService; nothing for other kinds, and where it is no string."""
    source = cluster.manifest.spec["serveConfigV2"]
    if not cluster.service or not isinstance(source.value, str | None):
        return
    # A literal block starts on the line below its key; other styles do not keep lines.
    literal = source.line if "Literal" in type(source.value).__name__ else None
    root, unreadable = _parsed(source.value or "")
    outer = source.document
    prefix = source.where.removeprefix(outer.title).strip()
    document = Document(root, outer.title, outer.file, prefix, lines_above=literal, line=source.line)
    yield ServeConfig(cluster, source, document.node, unreadable)


def _parsed(text: str) -> tuple[Any, str]:
    """What the YAML says, or why it is none."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return YAML().load(io.StringIO(text)), ""
    except (YAMLError, RecursionError, ValueError, NotImplementedError) as error:
        if isinstance(error, MarkedYAMLError) and error.problem_mark:
            return None, f"{' '.join((error.problem or 'it').split())}, on its line {error.problem_mark.line + 1}"
        return None, " ".join(str(error).split()) or "it"
