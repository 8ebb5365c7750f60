"""JSON schemas of tools' arguments, drawn from a seed. Their instances are short: random models come to an end."""

import random
from typing import Any

NAMES = ("city", "days", "unit", "to", "kind", "note")


def drawn(seed: int) -> dict[str, Any]:
    """An object's schema."""
    dice = random.Random(seed)
    schema = _object(dice, 2)
    if dice.random() < 0.3:
        schema["$defs"] = {"level": _value(dice, 0)}
        schema["properties"]["level"] = {"$ref": "#/$defs/level"}
        schema["required"].append("level")
    return schema


def _object(dice: random.Random, depth: int) -> dict[str, Any]:
    names = dice.sample(NAMES, dice.randint(1, 3))
    properties = {name: _value(dice, depth - 1) for name in names}
    required = [name for name in names if dice.random() < 0.7]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


def _value(dice: random.Random, depth: int) -> dict[str, Any]:
    flat = (_string, _number, _choice)
    return dice.choice((*flat, _array, lambda dice: _object(dice, depth), _either) if depth > 0 else flat)(dice)


def _string(dice: random.Random) -> dict[str, Any]:
    kinds: tuple[dict[str, Any], ...] = (
        {"maxLength": dice.randint(0, 6)},
        {"minLength": 2, "maxLength": 4},
        {"pattern": "^[A-Z]{2}-[0-9]{1,3}$"},
        {"format": dice.choice(["date", "time", "ipv4", "uuid"])},
    )
    return {"type": "string", **dice.choice(kinds)}


def _number(dice: random.Random) -> dict[str, Any]:
    low = dice.randint(-50, 50)
    kinds: tuple[dict[str, Any], ...] = (
        {"type": "integer", "minimum": low, "maximum": low + dice.randint(0, 99)},
        {"type": "integer", "exclusiveMinimum": low, "exclusiveMaximum": low + 7, "multipleOf": 3},
        {"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.25},
    )
    return dice.choice(kinds)


def _choice(dice: random.Random) -> dict[str, Any]:
    kinds: tuple[dict[str, Any], ...] = (
        {"enum": ["C", 7, None, True, {"a": [1]}]},
        {"const": 'quo"te}'},
        {"type": ["boolean", "null"]},
    )
    return dice.choice(kinds)


def _array(dice: random.Random) -> dict[str, Any]:
    if dice.random() < 0.3:
        return {"type": "array", "prefixItems": [_number(dice), _choice(dice)], "minItems": 2, "maxItems": 2}
    return {"type": "array", "items": _value(dice, 0), "minItems": dice.randint(0, 2), "maxItems": 3}


def _either(dice: random.Random) -> dict[str, Any]:
    return {"anyOf": [_value(dice, 0), _object(dice, 1)]}
