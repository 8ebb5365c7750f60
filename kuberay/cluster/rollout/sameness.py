"""Compares specs by meaning.

Operators parse objects and write them back: `1000m` becomes `1`, empty fields appear or vanish, defaults are filled in.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity

QUANTITY = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?")
NAMES = ("groupName", "name", "containerPort", "mountPath", "key", "port")  # keys of list items
AMOUNT = re.compile(r"(^|\.)(limits|requests|cpu|memory|sizeLimit|storage|nominalQuota)(\.|$)")
DEFAULTS = {"protocol": "TCP", "numOfHosts": 1, "priority": 0}  # a group's priority: since KubeRay 1.7


def same(one: Any, other: Any) -> bool:
    return next(differences(one, other), None) is None


def differences(
    before: Any, after: Any, skip: frozenset[str] = frozenset(), zeros: bool = False, path: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """Yields (path, before, after) for each field that differs. List items are matched by name where they have one.

    With `zeros`, false and 0 equal absent: the operator's Go types omit them.
    """
    if _empty(before, zeros) and _empty(after, zeros):
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            if key not in skip:
                default = DEFAULTS.get(key)
                where = f"{path}.{key}" if path else str(key)
                yield from differences(before.get(key, default), after.get(key, default), skip, zeros, where)
    elif isinstance(before, list) and isinstance(after, list):
        one, other = _named(before), _named(after)
        for key in [*one, *(key for key in other if key not in one)]:
            yield from differences(one.get(key), other.get(key), skip, zeros, f"{path}[{key}]")
    elif isinstance(before, dict | list) or isinstance(after, dict | list) or _text(before, path) != _text(after, path):
        yield path, before, after


def _empty(value: Any, zeros: bool) -> bool:
    if isinstance(value, dict):
        return all(_empty(inner, zeros) for inner in value.values())
    return value is None or value in ("", []) or (zeros and value in (False, 0))


def _named(items: list[Any]) -> dict[str, Any]:
    """The items by name if each has a unique one, else by position."""
    for field in NAMES:
        names = [str(item[field]) for item in items if isinstance(item, dict) and field in item]
        if len(set(names)) == len(items):
            return dict(zip(names, items))
    return {str(index): item for index, item in enumerate(items)}


def _text(value: Any, path: str) -> Any:
    """A scalar as text, or as a number in a field of quantities: 2.60 CPUs are 2.6, but version 2.60 is not 2.6."""
    text = str(value)
    return Decimal(parse_quantity(text)) if AMOUNT.search(path) and QUANTITY.fullmatch(text) else text


def short(value: Any) -> str:
    """A value as messages show it."""
    if value is None or isinstance(value, dict | list):
        return "not there" if value is None else "there" if value else "empty"
    return str(value)
