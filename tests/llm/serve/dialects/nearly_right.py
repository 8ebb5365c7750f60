"""Hypothesis strategies for nearly valid bodies."""

from typing import Any

from hypothesis import strategies as st

texts = st.text(max_size=4) | st.sampled_from(
    ["f", "get_weather", "a", "<tool_call>", "object", "string", "\ud800", "["]
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 99) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=5,
)


def fields(known: dict[str, st.SearchStrategy[Any]], needed: tuple[str, ...] = ()) -> st.SearchStrategy[Any]:
    """A nearly valid object: each field may be missing or have any value."""
    wild = {name: strategy | anything for name, strategy in known.items() if name not in needed}
    return st.fixed_dictionaries({name: known[name] for name in needed}, optional=wild)


schemas = fields(
    {
        "type": st.sampled_from(["object", "string", "integer", "array", ["object", "null"]]),
        "properties": st.dictionaries(texts, anything, max_size=2),
        "required": st.lists(texts, max_size=2),
        "enum": st.lists(anything, max_size=2),
        "pattern": texts,
        "$ref": st.sampled_from(["#", "#/properties/a", "http://nowhere"]),
        "x-guidance": anything,
    }
)
"""JSON schemas."""
