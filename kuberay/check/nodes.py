"""A value in an object, with its path and line. Lookups never fail, whatever the object holds."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kuberay.check.reading import first_line_of, line_of

_PLACEHOLDER = re.compile(
    r"\$\{?[A-Za-z_]|\{\{|\{[A-Za-z_][\w-]*\}|^<[^<>]+>$|^\[\[|^[A-Z][A-Z0-9]*(_[A-Z0-9]+)+$"
    r"|^(TOPOLOGY|ACCELERATOR|NAME|NAMESPACE|PORT|REPLICAS|IMAGE|VERSION|HOSTS|CHIPS|ZONE|REGION|PROJECT|BUCKET)$"
)
"""Text that a shell, a template or a reader has to fill in: $X, ${X}, {{ x }}, {x}, <x>, ACCELERATOR_TYPE."""


@dataclass(frozen=True, eq=False)
class Document:
    """A tree of values: an object, or the YAML inside one of its strings."""

    root: Any
    title: str
    """`RayService/llama3-8b`."""
    file: str | None = None
    prefix: str = ""
    """Path of the string that this document was parsed from, such as `spec.serveConfigV2`."""
    lines_above: int | None = 0
    """Offset of line numbers; None: every value is on `line`."""
    line: int | None = None

    @property
    def node(self) -> "Node":
        return Node(self, (), self.root)


@dataclass(frozen=True, eq=False)
class Node:
    """A value in a document. A missing child is also a Node, with the value None."""

    document: Document
    path: tuple[str | int, ...]
    value: Any

    def __getitem__(self, key: str) -> "Node":
        value = self.value.get(key) if isinstance(self.value, dict) else None
        return Node(self.document, (*self.path, key), value)

    def at(self, *keys: str) -> "Node":
        """The descendant at these keys."""
        node = self
        for key in keys:
            node = node[key]
        return node

    def __iter__(self) -> Iterator["Node"]:
        """Items of a list; none for any other value."""
        if isinstance(self.value, list):
            for index, item in enumerate(self.value):
                yield Node(self.document, (*self.path, index), item)

    @property
    def fields(self) -> dict[str, "Node"]:
        """Children of a mapping by key; none for any other value."""
        return {key: self[key] for key in self.value if isinstance(key, str)} if isinstance(self.value, dict) else {}

    @property
    def present(self) -> bool:
        """Whether there is a value; Kubernetes treats null as missing."""
        return self.value is not None

    @property
    def placeholder(self) -> bool:
        """Whether the value still has to be filled in, so that it cannot be checked."""
        if isinstance(self.value, str):
            return bool(_PLACEHOLDER.search(self.value))
        if not isinstance(self.value, dict):
            return False
        # Unquoted, {{ x }} is a mapping whose key is a mapping, and {x} one of x to nothing.
        scalars = str | int | float | None
        blank = len(self.value) == 1 and _in_braces(self.value) and None in self.value.values()
        return blank or any(not isinstance(key, scalars) for key in self.value)

    @property
    def text(self) -> str | None:
        """The value if it is a string and not a placeholder."""
        return str(self.value) if isinstance(self.value, str) and not self.placeholder else None

    @property
    def number(self) -> int | None:
        """The value if it is an integer."""
        is_number = isinstance(self.value, int) and not isinstance(self.value, bool)
        return int(self.value) if is_number else None

    @property
    def amount(self) -> float:
        """The value if it is a number, else 0."""
        return float(self.value) if isinstance(self.value, int | float) and not isinstance(self.value, bool) else 0.0

    @property
    def where(self) -> str:
        """`RayService/llama3-8b spec.rayClusterConfig.workerGroupSpecs[0].numOfHosts`."""
        dotted = ""
        for key in self.path:
            if isinstance(key, int) or "." in key or "/" in key:
                dotted += f"[{key}]"
            else:
                dotted += f".{key}" if dotted else key
        inner = f"{self.document.prefix} -> {dotted}" if self.document.prefix and dotted else self.document.prefix
        return f"{self.document.title} {inner or dotted}".rstrip()

    @property
    def file(self) -> str | None:
        return self.document.file

    @property
    def line(self) -> int | None:
        """Line of the key in the file; of its nearest ancestor if the key is missing."""
        above = self.document.lines_above
        if above is None:
            return self.document.line
        value, line = self.document.root, first_line_of(self.document.root)
        for key in self.path:
            found = line_of(value, key)
            if found is None:
                break
            value, line = value[key], found
        return None if line is None else line + above


def _in_braces(mapping: Any) -> bool:
    """Whether a mapping was written as {x}, on one line. A plain dictionary was not written at all."""
    return hasattr(mapping, "fa") and mapping.fa.flow_style() is True


def repeated(nodes: Iterable[Node]) -> Iterator[Node]:
    """Nodes whose text repeats that of an earlier one."""
    seen: set[str] = set()
    for node in nodes:
        if isinstance(node.value, str):
            if node.value in seen:
                yield node
            seen.add(node.value)


_UNITS = {unit: 10.0 ** (3 * power) for power, unit in enumerate(("n", "u", "m", "", "k", *"MGTPE"), -3)}
_UNITS |= {f"{unit}i": 1024.0**power for power, unit in enumerate("KMGTPE", 1)}
_QUANTITY = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+))(?:([eE][+-]?\d+)|([KMGTPE]i|[numkMGTPE]?))")


def quantity(node: Node) -> float | None:
    """The number that a Kubernetes quantity such as 8, "500m" or 200Gi stands for; None for anything else."""
    written = isinstance(node.value, str | int | float) and not isinstance(node.value, bool)
    match = _QUANTITY.fullmatch(str(node.value)) if written else None
    if match is None:
        return None
    number, exponent, unit = match.groups()
    return float(number + (exponent or "")) * _UNITS[unit or ""]


def version(text: str | None) -> tuple[int, ...] | None:
    """(2, 52, 0) of `2.52.0` and of `2.52.0rc1`; None for anything else."""
    match = re.match(r"^v?(\d+)\.(\d+)(?:\.(\d+))?", text or "")
    return tuple(int(part or 0) for part in match.groups()) if match else None
