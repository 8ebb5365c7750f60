"""JSON schemas drawn from a seed: keywords, sizes and nesting, up to those that no library can compile.

Ordinary ones, whose answers are short, are in `schemas`.
"""

import random
from typing import Any

Schema = dict[str, Any]
PIECES = ("a", "b", ".", "x*", "(a|b)*", "[a-z]+", "[^a]", ".*", r"\d", r"\w+", "(a*)*", "(x+x+)+", ",", "(.*,)", "a?")
COUNTS = ("{3}", "{1,20}", "{64}", "{2,}", "{0,1000}", "{100000}", "*", "+", "?")
SIZES = (0, 1, 2, 7, 30, 100, 1000, 10_000, 10**6, 10**9, 10**30)
STEPS = (1, 3, 7, 10, 100, 997, 1000, 3000017, 2**31 - 1, 10**30, 1e30, 0.25, 0.01, 0.007, 1e-9, 1e-300, 0, -5)
FORMATS = ("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "odd")
SCALARS = ("", "x", "value", 7, -1, 0.5, None, True, False, "é\u2028", '"}\n')
NAMES = ("a", "b", "name", "$ref", "type", "x y", "é", "")


def drawn(seed: int, most: int = 40) -> Schema:
    """A schema of about `most` subschemas at most."""
    return _Drawing(random.Random(seed), most).schema(0)


class _Drawing:
    def __init__(self, dice: random.Random, most: int):
        self.dice, self.left = dice, most

    def schema(self, depth: int) -> Any:
        dice = self.dice
        self.left -= 1
        if self.left < 0 or depth > 12:
            return dice.choice([{}, True, {"type": "integer"}, {"type": "string"}])
        kinds = [self.string, self.number, self.number, self.string, self.choice]
        if depth < 8:
            kinds += [self.array, self.object, self.object, self.combined]
        schema = dice.choice(kinds)(depth)
        if depth == 0:
            schema["$defs"] = {"a": self.schema(1), "b": dice.choice([{"$ref": "#"}, {"$ref": "#/$defs/a"}])}
        if dice.random() < 0.05:
            schema["description"] = "x" * dice.choice(SIZES[:6])
        if dice.random() < 0.05:
            schema |= dice.choice([self.combined, self.string, self.number, self.object])(depth)
        return schema

    def pattern(self) -> str:
        dice = self.dice
        body = "".join(
            dice.choice(PIECES) + (dice.choice(COUNTS) if dice.random() < 0.4 else "")
            for _ in range(dice.randint(1, 5))
        )
        if dice.random() < 0.3:
            body = f"({body}){dice.choice(COUNTS)}"
        return dice.choice(("^%s$", "%s", "^%s", ".*%s.*")) % body

    def string(self, depth: int) -> Schema:
        dice = self.dice
        schema: Schema = {"type": "string"}
        for key, value in (
            ("pattern", self.pattern()),
            ("format", dice.choice(FORMATS)),
            ("minLength", dice.choice(SIZES)),
            ("maxLength", dice.choice(SIZES)),
        ):
            if dice.random() < 0.35:
                schema[key] = value
        return schema

    def number(self, depth: int) -> Schema:
        dice = self.dice
        schema: Schema = {"type": dice.choice(["integer", "number"])}
        for key in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if dice.random() < 0.25:
                schema[key] = dice.choice([1, -1]) * dice.choice((*SIZES, 0.1, 1.5e300, 1234567.12345678))
        if dice.random() < 0.35:
            schema["multipleOf"] = dice.choice(STEPS)
        return schema

    def choice(self, depth: int) -> Schema:
        dice = self.dice
        if dice.random() < 0.3:
            return {"const": dice.choice([*SCALARS, {"a": [1, {"b": None}]}, [[[]]]])}
        count = dice.choice([1, 3, 20, 300, 3000] if depth < 3 else [1, 3])
        return {"enum": [dice.choice(SCALARS) if i < 8 else f"value {i}" for i in range(count)]}

    def array(self, depth: int) -> Schema:
        dice = self.dice
        schema: Schema = {"type": "array"}
        if dice.random() < 0.9:
            schema["items"] = self.schema(depth + 1)
        if dice.random() < 0.2:
            schema["prefixItems"] = [self.schema(depth + 1) for _ in range(dice.randint(1, 3))]
        for key in ("minItems", "maxItems"):
            if dice.random() < 0.3:
                schema[key] = dice.choice(SIZES)
        return schema

    def object(self, depth: int) -> Schema:
        dice = self.dice
        count = dice.choice([1, 2, 5, 40, 400] if depth < 2 else [1, 2, 5])
        names = [dice.choice(NAMES) if i < 6 else f"name{i}" for i in range(count)]
        schema: Schema = {"type": "object", "properties": {name: self.schema(depth + 1) for name in names}}
        if dice.random() < 0.6:
            schema["required"] = [name for name in schema["properties"] if dice.random() < 0.7]
        if dice.random() < 0.6:
            schema["additionalProperties"] = dice.choice([False, False, True, self.schema(depth + 1)])
        if dice.random() < 0.1:
            schema["patternProperties"] = {self.pattern(): self.schema(depth + 1) for _ in range(dice.randint(1, 3))}
        if dice.random() < 0.05:
            schema |= {dice.choice(["minProperties", "maxProperties"]): dice.choice(SIZES)}
        if dice.random() < 0.05:
            schema |= {dice.choice(["propertyNames", "not", "if", "contains"]): self.schema(depth + 1)}
        return schema

    def combined(self, depth: int) -> Schema:
        dice = self.dice
        if dice.random() < 0.25:
            return {"$ref": dice.choice(["#", "#/$defs/a", "#/$defs/b", "#/$defs/none", "http://x/y"])}
        count = dice.choice([1, 2, 3, 8, 30])
        if dice.random() < 0.3:  # conditions on one value
            kind = dice.choice([self.string, self.number])
            return {"allOf": [kind(depth) for _ in range(count)]}
        return {dice.choice(["anyOf", "anyOf", "oneOf", "allOf"]): [self.schema(depth + 1) for _ in range(count)]}
