"""When two spellings of a spec mean the same, and in what two specs differ.

Operators read objects into their own types and write them back: `1000m` comes back as `1`, what is empty comes back or
goes, defaults are spelled out.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

from kubernetes.utils.quantity import parse_quantity

QUANTITY = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([numkMGTPE]|[KMGTPE]i|[eE][+-]?[0-9]+)?")
NAMES = ("groupName", "name", "containerPort", "mountPath", "key", "port")  # what tells the items of a list apart
AMOUNT = re.compile(r"(^|\.)(limits|requests|cpu|memory|sizeLimit|storage|nominalQuota)(\.|$)")
DEFAULTS = {"protocol": "TCP", "numOfHosts": 1, "priority": 0}  # of groups, since KubeRay 1.7


def same(one: Any, other: Any) -> bool:
    return next(differences(one, other), None) is None


def differences(
    before: Any, after: Any, skip: frozenset[str] = frozenset(), zeros: bool = False, path: str = ""
) -> Iterator[tuple[str, Any, Any]]:
    """(path, before, after) of each field that differs; items of lists go by their names where they have any.

    With `zeros`, false and 0 are no more than absent: the operator's types drop them, where they are the default.
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
    elif isinstance(before, dict | list) or isinstance(after, dict | list) or _said(before, path) != _said(after, path):
        yield path, before, after


def _empty(value: Any, zeros: bool) -> bool:
    if isinstance(value, dict):
        return all(_empty(inner, zeros) for inner in value.values())
    return value is None or value in ("", []) or (zeros and value in (False, 0))


def _named(items: list[Any]) -> dict[str, Any]:
    """The items by name, as far as each has one of its own; else by position."""
    for field in NAMES:
        names = [str(item[field]) for item in items if isinstance(item, dict) and field in item]
        if len(set(names)) == len(items):
            return dict(zip(names, items))
    return {str(index): item for index, item in enumerate(items)}


def _said(value: Any, path: str) -> Any:
    """What a scalar says; amounts by their value: `2.60` is another version than `2.6`, and no other number of CPUs."""
    text = str(value)
    return Decimal(parse_quantity(text)) if AMOUNT.search(path) and QUANTITY.fullmatch(text) else text


def short(value: Any) -> str:
    """How a message names a value."""
    if value is None or isinstance(value, dict | list):
        return "not there" if value is None else "there" if value else "empty"
    return str(value)
