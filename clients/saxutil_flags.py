"""Parses saxutil's flags by Go's rules, and its arguments by Saxml's grammar."""

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from http_command import server_url

NAME = "[a-z]+[a-z0-9_-]*"


class Usage(Exception):
    """Arguments that a command does not take."""


class Help(Exception):
    """-help was given."""


@dataclass(frozen=True)
class Flag:
    read: Callable[[str], Any]  # raises Usage
    default: Any
    about: str


def take_flags(arguments: Sequence[str], known: Mapping[str, Flag]) -> tuple[dict[str, Any], list[str]]:
    """The flags' values and the arguments after them, by the rules of Go's flag package, which argparse cannot follow.

    -name and --name are the same; a value follows `=` or is the next argument, except a bool's, which needs `=` or is
    left out; flags end at the first other argument, so that a query may begin with a dash, or at `--`.
    """
    values, rest = {}, list(arguments)
    while rest and rest[0].startswith("-") and rest[0] != "-":
        argument = rest.pop(0)
        if argument == "--":
            break
        name, equals, value = argument.removeprefix("-").removeprefix("-").partition("=")
        name = name.replace("-", "_")
        if name in ("h", "help"):
            raise Help
        if name not in known:
            raise Usage(f"there is no flag {argument.partition('=')[0]}")
        if not equals and known[name].read is boolean:
            value = "true"
        elif not equals:
            if not rest:
                raise Usage(f"the flag -{name} needs a value")
            value = rest.pop(0)
        try:
            values[name] = known[name].read(value)
        except Usage as error:
            raise Usage(f"the flag -{name}: {error}") from None
    return values, rest


# Types of flags and arguments. All of these raise Usage.


def boolean(text: str) -> bool:
    if text.lower() not in ("true", "t", "1", "false", "f", "0"):
        raise Usage(f"{text!r} is neither true nor false")
    return text.lower() in ("true", "t", "1")


def count(text: str) -> int:
    if not text.isdecimal():
        raise Usage(f"{text!r} is not a whole number of 0 or more")
    return int(text)


def duration(text: str) -> float:
    """Seconds; also as Go writes them: 90s, 1.5m, 1h."""
    match = re.fullmatch(r"(\d+\.?\d*|\.\d+)(ms|s|m|h)?", text)
    value = float(match[1]) * {"ms": 0.001, "m": 60, "h": 3600}.get(match[2], 1) if match else 0
    if not 0 < value < math.inf:
        raise Usage(f"{text!r} is not a time above 0, such as 60, 90s or 5m")
    return value


def base_url(text: str) -> str:
    url = server_url(text)
    if url is None:
        raise Usage(f"{text!r} is not a cell's address; write it like http://localhost:8000 (no bucket is needed)")
    return url


def extra_inputs(text: str) -> dict[str, int | float]:
    """`temperature:0.2,per_example_max_decode_steps:32`."""
    found: dict[str, int | float] = {}
    for item in filter(None, text.split(",")):
        name, _, value = item.partition(":")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if not name or not math.isfinite(number):
            raise Usage(f"{item!r} is not NAME:NUMBER, such as temperature:0.2")
        found[name] = int(value) if re.fullmatch(r"-?\d+", value) else number
    return found


def override(text: str) -> tuple[str, Any]:
    """NAME=VALUE; the value is JSON where it parses, else a string."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        hint = "; flags come before the arguments" if text.startswith("-") else ""
        raise Usage(f"{text!r} is not NAME=VALUE{hint}")
    try:
        found = json.loads(value)
        json.dumps(found, allow_nan=False, ensure_ascii=False).encode()  # NaN, 1e999, half a surrogate pair
        return name, found
    except ValueError:
        return name, value


def model_id(text: str) -> str:
    if not re.fullmatch(f"/sax/{NAME}/{NAME}(:{NAME})?", text):
        raise Usage(
            f"{text!r} is not a model's ID: /sax/CELL/MODEL or /sax/CELL/MODEL:ADAPTER, names of a-z, 0-9, _ and - "
            "that begin with a-z"
        )
    return text


def cell_id(text: str) -> str:
    if not re.fullmatch(f"/sax/{NAME}", text):
        raise Usage(f"{text!r} is not a cell's ID: /sax/CELL, a name of a-z, 0-9, _ and - that begins with a-z")
    return text


def whose(text: str) -> dict[str, str]:
    """The field of a call that names the owner of an ACL."""
    return {"model": model_id(text)} if text.count("/") > 2 else {"sax_cell": cell_id(text)}
