"""Writes objects as readable YAML: comments above their keys, long texts as blocks."""

import io
import textwrap
from collections.abc import Mapping
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.scalarstring import DoubleQuotedScalarString, LiteralScalarString

from kuberay.render.notes import Noted

WIDTH = 112


def to_yaml(objects: list[dict[str, Any]], header: str = "") -> str:
    """One document for each object. `header` becomes comment lines at the top."""
    yaml = YAML()
    yaml.width = 4096  # no line breaks besides ours
    yaml.indent(mapping=2, sequence=2, offset=0)
    yaml.representer.ignore_aliases = lambda _: True
    texts = []
    for item in objects:
        text = io.StringIO()
        yaml.dump(_commented(item, 0), text)
        texts.append(text.getvalue())
    comment = "".join(f"# {line}\n" if line else "#\n" for line in header.splitlines())
    return comment + "---\n".join(texts)


def _commented(value: Any, indent: int) -> Any:
    """The value in ruamel's types, which can hold comments; `indent` is the column of its keys."""
    if isinstance(value, Mapping):
        result = CommentedMap()
        for key, inner in value.items():
            result[str(key)] = _commented(inner, indent + 2)
            if isinstance(key, Noted):
                lines = textwrap.wrap(key.why, max(40, WIDTH - indent))
                result.yaml_set_comment_before_after_key(str(key), before="\n".join(lines), indent=indent)
        return result
    if isinstance(value, list | tuple):
        return CommentedSeq(_commented(inner, indent) for inner in value)  # dashes are in their key's column
    if isinstance(value, str):
        if "\n" in value:
            return LiteralScalarString(value)
        # Quotes text that YAML would read as another type; double quotes, as in Kubernetes' examples.
        return DoubleQuotedScalarString(value) if _needs_quotes(value) else str(value)
    return value


def _needs_quotes(value: str) -> bool:
    if value.lower() in ("", "null", "~", "true", "false", "yes", "no", "on", "off", "y", "n"):
        return True
    return value[0].isdigit() and value.replace(".", "", 1).replace("e", "", 1).isdigit()
