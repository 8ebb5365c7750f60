"""Bodies of JSON are counted before they are parsed. The oracle is the parsed value itself."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.serving.ingress import json_body
from apps.serving.ingress.json_body import BadJSON, count_values, parsed_object

TEXT = st.text('a,:[]{}"\\\n é', max_size=9)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXT,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXT, inner, max_size=5),
    max_leaves=30,
)


def counted(value: Any) -> tuple[int, int]:
    if not isinstance(value, dict | list):
        return 0, 0
    members = list(value.values()) if isinstance(value, dict) else value
    separators = max(0, len(members) - 1) + (len(members) if isinstance(value, dict) else 0)
    inner = [counted(member) for member in members]
    return 1 + sum(objects for objects, _ in inner), separators + sum(values for _, values in inner)


@given(VALUES, st.booleans(), st.sampled_from([1, 2, 3, 7, 64, 2**18]))
def test_lists_objects_and_values_are_counted_outside_of_texts(value: Any, ascii_only: bool, block: int) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(json_body, "BLOCK", block)  # whatever is split between two blocks
        assert count_values(json.dumps(value, ensure_ascii=ascii_only).encode()) == counted(value)


@pytest.mark.parametrize(
    ("body", "field", "says"),
    [
        (rb'{"messages": [{"content": "\ud83d"}]}', "messages[0].content", r"\\ud83d"),
        (rb'{"a": {"b\udc00": 1}}', "a.a key", r"\\udc00"),
        (b'{"a": %s}' % (b"9" * 5000), None, "4300 digits"),
        (b"[" * 100_000, None, "nested"),
        (b'{"a":' * 300 + b"1" + b"}" * 300, None, "nested"),
        (b"[1]", None, "JSON object"),
        (b'{"a": ', None, "not valid JSON"),
        (b'{"a": "\xed\xa0\x80"}', "a", r"\\ud800"),
    ],
)
def test_what_cannot_be_taken_is_named(body: bytes, field: str | None, says: str) -> None:
    with pytest.raises(BadJSON, match=says) as caught:
        parsed_object(body)
    assert caught.value.field == field and len(str(caught.value)) < 500
