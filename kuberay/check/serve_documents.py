"""serveConfigV2: the YAML inside a RayService, as a document of its own that knows its lines in the file."""

import io
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from kuberay.check.manifests import Cluster
from kuberay.check.nodes import Document, Node


@dataclass(frozen=True, eq=False)
class ServeConfig:
    """The Serve config of a RayService; `node` is what it says, `source` the string that says it."""

    cluster: Cluster
    source: Node
    node: Node | None
    """None where the string is no YAML."""
    unreadable: str = ""

    @cached_property
    def applications(self) -> list["ServeApplication"]:
        return [ServeApplication(self, node) for node in self.node["applications"]] if self.node else []

    @property
    def deployments(self) -> list["ServeDeployment"]:
        return [deployment for application in self.applications for deployment in application.deployments]

    @property
    def http_port(self) -> int | None:
        """Where Serve listens; None where that is yet to be filled in."""
        return self._port("http_options", 8000)

    @property
    def grpc_port(self) -> int | None:
        """Where Serve listens for gRPC, if it does."""
        functions = self.node["grpc_options"]["grpc_servicer_functions"].value if self.node else None
        return self._port("grpc_options", 9000) if functions else None

    @property
    def head_only(self) -> bool:
        """Whether the head's proxy is the only one."""
        return self.node is not None and self.node["proxy_location"].value == "HeadOnly"

    def _port(self, options: str, default: int) -> int | None:
        port = self.node[options]["port"] if self.node else None
        return port.number if port is not None and port.present else default


@dataclass(frozen=True, eq=False)
class ServeApplication:
    """One of the applications that a Serve config starts."""

    config: ServeConfig
    node: Node

    def __getitem__(self, key: str) -> Node:
        return self.node[key]

    @cached_property
    def deployments(self) -> list["ServeDeployment"]:
        return [ServeDeployment(self, node) for node in self.node["deployments"]]


@dataclass(frozen=True, eq=False)
class ServeDeployment:
    """What a Serve config says of one deployment of an application."""

    application: ServeApplication
    node: Node

    def __getitem__(self, key: str) -> Node:
        return self.node[key]

    @property
    def actor(self) -> Node:
        return self.node["ray_actor_options"]


def serve_config(cluster: Cluster) -> ServeConfig | None:
    """The Serve config of a cluster's RayService; None for other kinds, and where it is no string."""
    source = cluster.manifest.spec["serveConfigV2"]
    if cluster.manifest.kind != "RayService" or not (source.value is None or isinstance(source.value, str)):
        return None
    outer = source.document
    # A literal block starts on the line below its key; other styles do not keep lines.
    literal = source.line if "Literal" in type(source.value).__name__ else None
    prefix = source.where.removeprefix(outer.title).strip()
    try:
        root = _parsed(source.value or "")
    except ValueError as error:
        return ServeConfig(cluster, source, None, str(error))
    document = Document(root, outer.title, outer.file, prefix, lines_above=literal, line=source.line)
    return ServeConfig(cluster, source, document.node)


def _parsed(text: str) -> Any:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        return YAML().load(io.StringIO(text))
    except MarkedYAMLError as error:
        mark = error.problem_mark
        line = f", on its line {mark.line + 1}" if mark else ""
        raise ValueError(f"{' '.join((error.problem or 'it').split())}{line}") from error
    except (YAMLError, RecursionError, ValueError, NotImplementedError) as error:
        raise ValueError(" ".join(str(error).split())) from error
