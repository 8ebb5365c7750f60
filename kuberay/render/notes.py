"""Comments in manifests, written beside the value that they explain."""


class Noted(str):
    """A key that says why its value is what it is: equal to the bare key for everyone but the YAML writer."""

    __slots__ = ("why",)

    why: str


def noted(key: str, why: str) -> Noted:
    """`{noted("type", "NewCluster would need twice the TPUs"): "None"}`: the comment goes above the key."""
    key = Noted(key)
    key.why = why
    return key
