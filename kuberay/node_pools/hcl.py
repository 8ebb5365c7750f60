"""Writes HCL as `terraform fmt` would lay it out."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

ESCAPES = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


@dataclass(frozen=True)
class Expression:
    """HCL as it is: a reference, or a string with references in it."""

    text: str


Value = str | int | bool | Expression | Sequence["Value"]


@dataclass(frozen=True)
class Block:
    header: str
    """Its type and labels: `resource "google_storage_bucket" "bucket"`."""
    attributes: Mapping[str, Value] = field(default_factory=dict)
    blocks: Sequence["Block"] = ()
    comment: str = ""


def document(blocks: Sequence[Block]) -> str:
    return "\n".join("\n".join(_lines(block)) + "\n" for block in blocks)


def literal(value: str) -> str:
    """A quoted string that means exactly `value`: neither quotes nor ${...} in it mean anything."""
    escaped = "".join(ESCAPES.get(c) or (c if c.isprintable() else f"\\U{ord(c):08x}") for c in value)
    return '"' + escaped.replace("${", "$${").replace("%{", "%%{") + '"'


def _lines(block: Block) -> Iterator[str]:
    if block.comment:
        yield f"# {block.comment}"
    yield f"{block.header} {{"
    width = max((len(name) for name in block.attributes), default=0)
    for name, value in block.attributes.items():
        yield f"  {name:<{width}} = {written(value)}"
    for i, inner in enumerate(block.blocks):
        if i or block.attributes:
            yield ""
        yield from (f"  {line}" if line else "" for line in _lines(inner))
    yield "}"


def written(value: Value) -> str:
    match value:
        case Expression(text=text):
            return text
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case str():
            return literal(value)
        case _:
            return f"[{', '.join(written(one) for one in value)}]"
