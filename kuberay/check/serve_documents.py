"""serveConfigV2: the YAML inside a RayService, as a document of its own that knows its lines in the file."""

import io
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from kuberay.check.manifests import Cluster
from kuberay.check.nodes import Document, Node


@dataclass(frozen=True, eq=False)
class ServeConfig:
    """The Serve config of a RayService; `node` is what it says, `source` the string that says it."""

    schema: ClassVar = "ServeDeploySchema"
    refused: ClassVar = "Ray Serve refuses the config"

    cluster: Cluster
    source: Node
    node: Node
    unreadable: str = ""
    """Why the string is no YAML, if it is none."""

    @cached_property
    def applications(self) -> list[Node]:
        return list(self.node["applications"])

    @cached_property
    def deployments(self) -> list[Node]:
        """Of all applications."""
        return [deployment for application in self.applications for deployment in application["deployments"]]

    @property
    def http_port(self) -> int | None:
        """Where Serve listens; None where that is yet to be filled in."""
        port = self.node["http_options"]["port"]
        return port.number if port.present else 8000

    @property
    def grpc_port(self) -> int | None:
        """Where Serve listens for gRPC, if it does."""
        options = self.node["grpc_options"]
        port = options["port"].number if options["port"].present else 9000
        return port if options["grpc_servicer_functions"].value else None

    @property
    def head_only(self) -> bool:
        """Whether the head's proxy is the only one."""
        return self.node["proxy_location"].value == "HeadOnly"


def serve_config(cluster: Cluster) -> Iterator[ServeConfig]:
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
