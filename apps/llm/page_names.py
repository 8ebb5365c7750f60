"""Names of full pages of a KV cache, equal on every replica: a prompt's tokens say which pages it needs.

A page is named by a hash of its tokens and of the name of the page before it, so a name stands for a whole prefix. The
first page follows a root, which says what else its numbers depend on.
"""

import hashlib
import struct
from collections.abc import Iterable, Sequence

from apps.llm.api import PromptImage

PageName = bytes


def model_root(digest: bytes, page_size: int, types: Iterable[str]) -> PageName:
    """The root of an engine: engines with equal ones compute the same pages for the same tokens, up to rounding.

    Args:
        digest: of the model's weights and config.
        types: of the computation, of the weights and of the cache.
    """
    return _hashed([digest, page_size.to_bytes(4, "little"), *(name.encode() for name in types)])


def page_root(model: PageName, adapter: bytes = b"", salts: Iterable[str] = ()) -> PageName:
    """What the names of a request's pages begin with: they match those of the same model, adapter and salts alone.

    Args:
        model: the engine's root, see `Capabilities`.
        adapter: its key; empty for the model itself.
    """
    return _hashed([model, adapter, *(salt.encode("utf-8", "surrogatepass") for salt in salts)])


def page_names(
    root: PageName, tokens: Sequence[int], page_size: int, images: Sequence[PromptImage] = ()
) -> list[PageName]:
    """Names of the full pages of these tokens, some of which stand for images."""
    names = [root]
    for first in range(0, len(tokens) - page_size + 1, page_size):
        stop = first + page_size
        names.append(page_name(names[-1], tokens[first:stop], digests(images, first, stop)))
    return names[1:]


def digests(images: Iterable[PromptImage], start: int, stop: int) -> bytes:
    """Of the images that begin at these tokens."""
    return b"".join(image.digest for image in images if start <= image.start < stop)


def page_name(parent: PageName, tokens: Sequence[int], images: bytes = b"") -> PageName:
    """Name of a full page: 16 bytes, enough to make a collision of two prefixes practically impossible.

    Args:
        images: digests of those that begin in this page. Tokens stand for an image's place, not for what it shows.
    """
    digest = hashlib.blake2b(parent, digest_size=16)
    digest.update(struct.pack(f"<{len(tokens)}I", *tokens) + images)
    return digest.digest()


def _hashed(parts: Iterable[bytes]) -> PageName:
    # Each with its length, so that no two lists of parts look alike.
    framed = b"".join(len(part).to_bytes(8, "little") + part for part in parts)
    return hashlib.blake2b(framed, digest_size=16).digest()
