"""serveConfigV2: the YAML string inside a RayService, parsed into a document that keeps its lines in the file."""

import io
from collections.abc import Iterator
from typing import Any

from kuberay.check.manifests import RayCluster
from kuberay.check.nodes import Document, Node


class ServeConfig:
    """The Serve config of a RayService; `node` is the parsed config, `source` the string."""

    schema = "ServeDeploySchema"
    refused = "Ray Serve refuses the config"

    def __init__(self, cluster: RayCluster, source: Node, node: Node, unreadable: str = "") -> None:
        self.cluster, self.source, self.node = cluster, source, node
        self.unreadable = unreadable
        """The parser's message if the string is not valid YAML."""
        self.applications = list(node["applications"])
        self.deployments = [each for application in self.applications for each in application["deployments"]]
        """Deployments of all applications."""
        http, grpc = node["http_options"]["port"], node["grpc_options"]["port"]
        self.http_port = http.number if http.present else 8000
        """Port that Serve listens on; None if it is a placeholder."""
        serves_grpc = bool(node["grpc_options"]["grpc_servicer_functions"].value)
        self.grpc_port = (grpc.number if grpc.present else 9000) if serves_grpc else None
        """Port that Serve listens on for gRPC, if any."""
        self.head_only = node["proxy_location"].value == "HeadOnly"
        """Whether only the head runs a proxy."""


def serve_config(cluster: RayCluster) -> Iterator[ServeConfig]:
    """The Serve config of a cluster's RayService; nothing for other kinds, or if it is not a string."""
    source = cluster.manifest.spec["serveConfigV2"]
    if not cluster.service or not isinstance(source.value, str | None):
        return
    # A literal block starts on the line below its key; other styles lose their line breaks.
    literal = source.line if "Literal" in type(source.value).__name__ else None
    root, unreadable = _parsed(source.value or "")
    outer = source.document
    prefix = source.where.removeprefix(outer.title).strip()
    document = Document(root, outer.title, outer.file, prefix, lines_above=literal, line=source.line)
    yield ServeConfig(cluster, source, document.node, unreadable)


def _parsed(text: str) -> tuple[Any, str]:
    """The parsed YAML, or the parser's message."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return YAML().load(io.StringIO(text)), ""
    except (YAMLError, RecursionError, ValueError, NotImplementedError) as error:
        if isinstance(error, MarkedYAMLError) and error.problem_mark:
            return None, f"{' '.join((error.problem or 'it').split())}, on its line {error.problem_mark.line + 1}"
        return None, " ".join(str(error).split()) or "it"
