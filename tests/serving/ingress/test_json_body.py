"""Bodies of JSON are counted before they are parsed. The oracle is the parsed value itself."""

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.serving.ingress import json_body
from apps.serving.ingress.json_body import MOST_OBJECTS, MOST_VALUES, BadJSON, count_values, parsed_object

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
        (b'{"a": "%s\\udc00b"}' % (b"a" * 2**20), None, "half of a character.*column 1048589"),
    ],
)
def test_what_cannot_be_taken_is_named(body: bytes, field: str | None, says: str) -> None:
    with pytest.raises(BadJSON, match=says) as caught:
        parsed_object(body)
    assert caught.value.field == field and len(str(caught.value)) < 500


MEMBERS = (MOST_VALUES // MOST_OBJECTS - 1) // 2
OBJECTS = ", ".join(json.dumps({f"{name} {i}": i for name in "abcd"[:MEMBERS]}) for i in range(MOST_OBJECTS - 5))
TEXTS = ", ".join(f'"{i} \\u00e9"' for i in range(MOST_VALUES - 5))


@pytest.mark.parametrize("most", [OBJECTS, TEXTS], ids=["objects", "texts"])
@pytest.mark.parametrize("last", ['"\\ud83d\\ude00"', '"\\ud83d"'], ids=["a pair", "half of one"])
def test_no_python_runs_for_each_value_of_a_body(most: str, last: str) -> None:
    """Parsing holds the GIL. The oracle is Python's own parser."""
    body = f'{{"model": "m", "a": [{most}, {last}]}}'.encode()
    assert len(body) > 2**20
    found, calls = None, 0

    def called(*_: Any) -> None:
        nonlocal calls
        calls += 1

    sys.setprofile(called)
    try:
        found = parsed_object(body)
    except BadJSON:
        assert last == '"\\ud83d"'
    finally:
        sys.setprofile(None)
    assert calls < MOST_OBJECTS / 50, "a few are those of callbacks of garbage collection"
    assert found is None or found == json.loads(body)


@given(st.dictionaries(TEXT, VALUES, max_size=5), st.booleans())
def test_an_object_is_read_as_python_reads_it(value: dict[str, Any], ascii_only: bool) -> None:
    body = json.dumps(value, ensure_ascii=ascii_only)
    assert parsed_object(body.encode()) == json.loads(body)
