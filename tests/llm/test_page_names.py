"""Routers, and programs that follow page events, keep names of pages: a version that changes them finds none again.

The right values are those of the version that first had them, and hashlib's own of the same bytes.
"""

import hashlib
import struct

from apps.llm.page_names import model_root, page_name, page_names, page_root

MODEL = model_root(bytes(range(16)), 16, ["bfloat16", "int8"])
TOKENS = range(40)


def test_names_are_what_they_were() -> None:
    assert MODEL.hex() == "b7316292c531d36d94b1ba27810a6833"
    assert page_root(MODEL).hex() == "1d4c7ccd671d6605a64be8b364492431"
    assert page_root(MODEL, b"adapter", ["alice", "s"]).hex() == "3614d62ef330a09394cd5d864e070ff0"
    names = [name.hex() for name in page_names(page_root(MODEL), TOKENS, 16)]
    assert names == ["ad3a72de7b229d49f34c51a14a437cd8", "da13b25de51c500d2ec780a729930d1d"]


def test_a_name_is_a_hash_of_what_stands_before_the_tokens_and_the_images() -> None:
    parent, image = page_root(MODEL), bytes(range(32))
    first = struct.pack("<16I", *range(16))
    assert page_name(parent, range(16), image) == hashlib.blake2b(parent + first + image, digest_size=16).digest()


def test_an_image_tells_pages_apart_from_where_it_stands() -> None:
    root = page_root(MODEL)
    without = page_name(root, range(16))
    first, other = (page_name(root, range(16), bytes([i]) * 32) for i in (1, 2))
    assert len({without, first, other}) == 3
    assert len({page_name(parent, range(16, 32)) for parent in (without, first, other)}) == 3, "and all that follow"
