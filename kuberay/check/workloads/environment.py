"""Environment variables of containers: what Kubernetes does not expand in them, and what should be in a Secret."""

import re
from collections.abc import Iterator

from kuberay.check.manifests import Container
from kuberay.check.rules import Problem, rule, warning

_SHELLS = re.compile(r"(?<!\$)\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")
"""A variable as shells write it; Kubernetes writes $(NAME), and $$ for a dollar sign."""
_FROM_IMAGES = frozenset({"PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "HOME", "USER", "HOSTNAME", "PWD", "LANG", "TMPDIR"})
"""Variables of images and shells: people mean them, and no template fills them in."""
_SECRET = re.compile(
    r"(^|_)(TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIALS?|API_?KEYS?|(ACCESS|SECRET|PRIVATE|AUTH)_?KEY)$", re.I
)
_HARMLESS = re.compile(r"(?:.{0,3}|true|false|none|null|dummy|empty|\d+|/.*|[a-z]+://[^@]*)", re.I)
"""Values that are no secrets, whatever the name: switches, numbers, paths, addresses without a password."""


@rule(Container, "env-expansion", "Kubernetes: dependent environment variables are written $(NAME)")
def shell_syntax(container: Container) -> Iterator[Problem]:
    """A value refers to another variable as $(NAME): Kubernetes expands nothing else, and no shell reads it."""
    for name, value in container.env.items():
        found = (match[1] or match[2] for match in _SHELLS.finditer(str(value.value or "")))
        meant = [each for each in found if each in _FROM_IMAGES or each == name or each in container.env]
        if meant:
            why = f"${meant[0]} is not expanded: the program sees these very letters"
            earlier = list(container.env).index(meant[0]) if meant[0] in container.env else None
            if earlier is not None and earlier < list(container.env).index(name):
                yield warning(value, why, f"write $({meant[0]})")
            else:
                instead = f"write the value of {meant[0]} out; $(NAME) works for variables set before in this list"
                yield warning(value, why, instead)


@rule(Container, "clear-secret", "Kubernetes: whoever may read the object reads its env")
def secrets(container: Container) -> Iterator[Problem]:
    """Tokens, keys and passwords come from a Secret, not from the manifest, which many may read and which Git keeps."""
    for name, value in container.env.items():
        text = value.text
        if text is not None and _SECRET.search(name) and not _HARMLESS.fullmatch(text):
            why = f"{name} is in clear: everyone who may read this object, or the file in Git, has it"
            instead = "put it into a Secret and name that: valueFrom: {secretKeyRef: {name: ..., key: ...}}"
            yield warning(value, why, instead)
