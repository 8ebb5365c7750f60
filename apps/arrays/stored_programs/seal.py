"""The key that compiled programs are sealed with: none is loaded from elsewhere that was not written with it."""

import os

KEY_VARIABLE = "PODSLICE_PROGRAMS_KEY"
SHORTEST_KEY = 16
MAKE_A_KEY = f"export {KEY_VARIABLE}=$(openssl rand -hex 32)"


class Unusable(RuntimeError):
    """Programs cannot be used; the message says which and why."""


def key() -> bytes | None:
    """The key of the environment; None: there is none.

    Raises:
        Unusable: it is so short that it could be guessed.
    """
    given = os.environ.get(KEY_VARIABLE, "")
    if given and len(given) < SHORTEST_KEY:
        raise Unusable(f"{KEY_VARIABLE} has {len(given)} characters, fewer than {SHORTEST_KEY}: {MAKE_A_KEY}")
    return given.encode() or None
