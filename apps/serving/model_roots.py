"""Which places a caller may have the server read: hub ids, and what lies below configured roots.

One rule for a cell's models and adapters and for `/v1/load_lora_adapter`. What is below a root is decided for local
paths by `os.path.realpath`, after links, and for URLs by scheme and whole path segments. Chained URLs (`a::b`, where
the last part is opened first) name two places, so nobody may use them.
"""

import os
import re
from collections.abc import Iterator, Sequence
from urllib.parse import unquote

from fsspec.core import split_protocol
from fsspec.implementations.local import LocalFileSystem

HUB = "huggingface:"
"""Before a hub id, so that no folder of that name is meant."""
HUB_ID = re.compile(r"(?=.{1,96}$)[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?", re.ASCII)
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
SPECIAL = re.compile(r"::|[*?\[\]\\]")
LINKS = 100_000
"""Entries of a folder that are looked at for links."""


def is_hub_id(text: str) -> bool:
    """Whether the text can be a repository's id: OWNER/NAME, or NAME."""
    return HUB_ID.fullmatch(text) is not None and not any(bad in text for bad in ("..", "--"))


def is_plain(name: str) -> bool:
    """Whether the name is that of a file in a folder or in a folder of that, which no file system reads otherwise."""
    return not (CONTROL.search(name) or SPECIAL.search(name) or {"", ".", ".."} & set(name.split("/")))


def permitted(text: str, roots: Sequence[str]) -> str | None:
    """The folder or URL to read for a caller's absolute path or URL; None: it is not below any root.

    Says nothing about what exists there.
    """
    if CONTROL.search(text) or "::" in text:
        return None
    local = _local_path(text)
    for root in roots:
        if "::" in root:
            continue
        base = _local_path(os.path.expanduser(root))
        if local is not None and base is not None:
            if (text.startswith("/") or "://" in text) and _inside(
                real := os.path.realpath(local), os.path.realpath(base)
            ):
                return text.rstrip("/") or "/" if text.startswith("/") else real
        elif local is None and base is None and _below_url(text, root):
            return text.rstrip("/")
    return None


def link_out(folder: str, roots: Sequence[str]) -> str | None:
    """A link in a local folder below one of the roots, or the folder itself, that leads out of all of them.

    None: there is none, or the folder is not below a root, so no caller can have named it.
    """
    named = [os.path.abspath(base) for root in roots if (base := _local_path(os.path.expanduser(root))) is not None]
    bases = [os.path.realpath(base) for base in named]
    real = os.path.realpath(folder)
    if not _inside(real, *bases) and not _inside(os.path.abspath(folder), *named, *bases):
        return None
    if not _inside(real, *bases):
        return folder
    for seen, link in enumerate(_links(folder)):
        if not _inside(os.path.realpath(link), *bases) or seen > LINKS:
            return link
    return None


def _links(folder: str) -> Iterator[str]:
    """All links in a folder, and in the folders that they lead to."""
    waiting, seen = [folder], set[str]()
    while waiting:
        here = waiting.pop()
        if (real := os.path.realpath(here)) in seen:
            continue
        seen.add(real)
        with os.scandir(here) as entries:
            for entry in entries:
                if entry.is_symlink():
                    yield entry.path
                if entry.is_dir():
                    waiting.append(entry.path)


def _local_path(text: str) -> str | None:
    """What fsspec's local file system opens for it; None: another file system does."""
    if (split_protocol(text)[0] or "file") not in LocalFileSystem.protocol:
        return None
    path: str = LocalFileSystem._strip_protocol(text)
    return path


def _inside(path: str, *bases: str) -> bool:
    return any(path == base or path.startswith(base.rstrip("/") + "/") for base in bases)


def _below_url(text: str, root: str) -> bool:
    """Whether a URL is a root's or below it, by whole segments; one that a server could read otherwise is not."""
    (scheme, base), (wanted, path) = split_protocol(root), split_protocol(text)
    plain = path
    while (decoded := unquote(plain)) != plain:
        plain = decoded
    if wanted != scheme or {".", ".."} & set(plain.split("/")) or re.search(r"[\\?#\s]|[\x00-\x1f]", plain):
        return False
    base = base.rstrip("/")
    return not base or path.rstrip("/") == base or path.startswith(base + "/")
