"""Access control lists of principals, which are the names of API keys.

The published Saxml stores ACLs but ignores them; here they are enforced. Without keys there are no principals, and
everyone may do everything.
"""

import re

from apps.cell import calls
from apps.cell.errors import CellError

METHODS = ("lm.generate", "lm.generate_stream", "lm.score", "lm.embed")
EVERYONE = frozenset({"", "*"})
_PRINCIPAL = re.compile(r"[a-z][a-z0-9_-]*")


def parse(acl: object) -> str:
    """Normalize an ACL to `alice,bob`; empty for everyone. Names may have Saxml's prefix `acl/`.

    Raises CellError.
    """
    if not isinstance(acl, str):
        raise CellError(
            f"acl {acl!r:.100} must be names of keys, comma-separated, such as alice,bob; or * for everyone"
        )
    if len(acl) > calls.LONGEST_ACL:
        raise CellError(f"acl has {len(acl)} characters; it can have {calls.LONGEST_ACL}")
    if acl.strip() in EVERYONE:
        return ""
    names = [name.strip().removeprefix("acl/") for name in acl.split(",")]
    for name in names:
        if not _PRINCIPAL.fullmatch(name):
            raise CellError(
                f"acl {acl!r:.100}: {name!r:.100} is not a key's name (lower-case letters, digits, - and _, starting "
                "with a letter); give names comma-separated, or * for everyone"
            )
    return ",".join(dict.fromkeys(names))


def allows(acl: str, principal: str | None) -> bool:
    """Whether the ACL admits a principal; None: the service has no keys, so everyone is admitted."""
    return principal is None or acl == "" or principal in acl.split(",")


def check_method(method: object) -> str:
    """Raise CellError unless published models have this method."""
    if method not in METHODS:
        raise CellError(f"method {method!r:.100} must be one of {', '.join(METHODS)}")
    return str(method)
