"""Reads YAML files into objects that keep their line numbers, with one clear error for an unreadable file."""

import io
import re
from datetime import date
from pathlib import Path
from typing import Any

from kuberay.check.comments import comments_in

MOST_BYTES = 4 * 2**20
"""Size limit of a file; the API server stores no object of more than 1.5 MiB."""
MOST_VALUES = 100_000
"""Limit on the values of one document with its aliases expanded: a few nested aliases can expand to billions."""
MOST_LEVELS = 200
_TOO_DEEP = f"nests more than {MOST_LEVELS} levels deep"


class UnreadableYaml(ValueError):
    """A file that cannot be read as Kubernetes YAML; the message is `file:line: why; instead`."""

    def __init__(self, file: str, line: int | None, why: str, instead: str) -> None:
        self.file, self.line, self.why, self.instead = file, line, why, instead
        super().__init__(f"{file}:{line}: {why}; {instead}" if line else f"{file}: {why}; {instead}")


def read_yaml(path: str | Path) -> list[Any]:
    """Returns the objects of a YAML or JSON file in order, without empty documents. They keep their file and lines.

    Raises UnreadableYaml, a ValueError, for a file that kubectl could not read either.
    """
    file = str(path)
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UnreadableYaml(file, None, f"cannot be opened: {error.strerror}", "check the path") from error
    if (size := len(content)) > MOST_BYTES:
        instead = f"split it into files below {MOST_BYTES >> 20} MiB"
        raise UnreadableYaml(file, None, f"has {size / 2**20:.0f} MiB", instead)
    return parse_yaml(_decoded(content, file), file)


def parse_yaml(text: str, file: str) -> list[Any]:
    """Like `read_yaml`, for text; `file` is the name to report."""
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    yaml = YAML()
    yaml.preserve_quotes = True  # tells yes from "yes"
    # kubectl accepts tabs at the end of a line, this parser does not; no rule depends on them.
    text = re.sub(r"[ \t]*\t[ \t]*$", "", text, flags=re.MULTILINE)
    comments = comments_in(text, file)
    try:
        objects = [document for document in yaml.load_all(io.StringIO(text)) if document is not None]
    except RecursionError as error:
        raise UnreadableYaml(file, None, _TOO_DEEP, "write it with fewer levels") from error
    except MarkedYAMLError as error:
        raise UnreadableYaml(file, *_explained(error, text)) from error
    except (YAMLError, ValueError, NotImplementedError) as error:
        why = " ".join(str(error).split()) or type(error).__name__
        raise UnreadableYaml(file, None, f"is not valid YAML: {why}", "correct it") from error
    for document in objects:
        if not isinstance(document, dict):
            why = f"holds a document that is a {type_name(document)}, not an object"
            raise UnreadableYaml(file, None, why, "start each document with apiVersion and kind")
        _refuse_explosion(document, file)
        vars(document).update(_file=file, _comments=comments)  # as ruamel keeps its lines
    return objects


def objects_in(value: Any) -> list[Any]:
    """The object, or the items of a `kind: List`."""
    listed = isinstance(value, dict) and str(value.get("kind", "")).endswith("List")
    return value["items"] if listed and isinstance(value.get("items"), list) else [value]


def file_of(value: Any) -> str | None:
    """The file that an object was read from."""
    return getattr(value, "_file", None)


def line_of(value: Any, key: Any) -> int | None:
    """The line, from 1, of a key or item of a value that was read from a file."""
    marks = getattr(getattr(value, "lc", None), "data", None)
    return marks[key][0] + 1 if marks and key in marks else None


def first_line_of(value: Any) -> int | None:
    """The line, from 1, on which a mapping or list starts."""
    line = getattr(getattr(value, "lc", None), "line", None)
    return None if line is None else line + 1


_TYPES = (
    (dict, "mapping"),
    (list, "list"),
    (str, "string"),
    (bool, "boolean"),
    (int, "integer"),
    (float, "number"),
    (date, "date"),
    (type(None), "null"),
)


def type_name(value: Any) -> str:
    """YAML's name for the type of a value."""
    return next((name for kind, name in _TYPES if isinstance(value, kind)), "value")


def _decoded(content: bytes, file: str) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        content = content.decode("utf-16", errors="replace").encode()
    if b"\0" in content:
        raise UnreadableYaml(file, None, "is binary, not text", "give a YAML or JSON file")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UnreadableYaml(file, line, "is not UTF-8 text", "save it as UTF-8") from error


def _explained(error: Any, text: str) -> tuple[int | None, str, str]:
    """Line, why and instead, with better messages for the most common mistakes."""
    mark, lines = error.problem_mark or error.context_mark, text.splitlines()
    if mark and error.context_mark and mark.line >= len(lines):
        mark = error.context_mark  # the bracket that was never closed, rather than the end of the file
    line = mark.line + 1 if mark else None
    problem = " ".join((error.problem or str(error)).split())
    if key := re.search(r'duplicate key "?([^" ]+)', problem):
        return line, f"has the key {key[1]} twice in one mapping: the second would silently win", f"keep one {key[1]}"
    for number, row in enumerate(lines, 1):
        if re.match(r"\s*\{\{", row):
            return number, "is a Helm or Go template, not YAML yet", "render it first (helm template), check the result"
    if any(re.match(r" *\t", row) for row in lines[mark.line :][:1] if mark):
        return line, "indents with a tab, which YAML does not allow", "indent with spaces"
    return line, f"is not valid YAML: {problem}", "correct the indentation, quotes or colons on this line or above"


def _refuse_explosion(document: Any, file: str) -> None:
    left, stack = MOST_VALUES, [(document, 0)]
    while stack:
        value, depth = stack.pop()
        left -= 1
        if left < 0 or depth > MOST_LEVELS:
            exploded = f"expands to more than {MOST_VALUES} values through its anchors and aliases"
            instead = "write the repeated parts out, or split the file"
            raise UnreadableYaml(file, first_line_of(value), exploded if left < 0 else _TOO_DEEP, instead)
        children = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        stack.extend((child, depth + 1) for child in children)
