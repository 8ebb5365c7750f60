"""Comments in manifests, attached to the key that they explain."""


class Noted(str):
    """A key with a comment on its value. Only the YAML writer sees the comment; the key equals a plain string."""

    __slots__ = ("why",)

    why: str


def noted(key: str, why: str) -> Noted:
    """`{noted("type", "NewCluster would need twice the TPUs"): "None"}`: the comment goes above the key."""
    key = Noted(key)
    key.why = why
    return key
