"""Who may do what: lists of principals, which are the names of API keys.

Upstream's Saxml keeps ACLs and, as it is published, ignores them; here they are enforced. Without keys there are no
principals to tell apart, and everyone may do everything.
"""

import re

from apps.cell.errors import CellError

METHODS = ("lm.generate", "lm.generate_stream", "lm.score", "lm.embed")
EVERYONE = frozenset({"", "*"})
_PRINCIPAL = re.compile(r"[a-z][a-z0-9_-]*")


def parse(acl: object) -> str:
    """The list in its one form, `alice,bob`; empty for everyone. Saxml's prefix `acl/` may stand before a name.

    Raises CellError.
    """
    if not isinstance(acl, str):
        raise CellError(f"acl {acl!r} must be names of keys, comma-separated, such as alice,bob; or * for everyone")
    if acl.strip() in EVERYONE:
        return ""
    names = [name.strip().removeprefix("acl/") for name in acl.split(",")]
    for name in names:
        if not _PRINCIPAL.fullmatch(name):
            raise CellError(
                f"acl {acl!r}: {name!r} is no name of a key (small letters, digits, - and _, a letter first); "
                "give names comma-separated, or * for everyone"
            )
    return ",".join(dict.fromkeys(names))


def allows(acl: str, principal: str | None) -> bool:
    """Whether the list lets a principal; None: there are no keys, and so no one to be kept out."""
    return principal is None or acl == "" or principal in acl.split(",")


def check_method(method: object) -> str:
    """Raises CellError unless it is one that a published model has."""
    if method not in METHODS:
        raise CellError(f"method {method!r} must be one of {', '.join(METHODS)}")
    return str(method)
