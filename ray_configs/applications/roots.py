"""Where things are: files by name, and the folders and URL prefixes below which callers may name them."""

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator

from ray_configs.base import from_text

NamedLocations = Annotated[dict[str, str], from_text('{"name": "/folder/file"}')]
"""Name -> a folder or file, a URL, or an id of the hub."""


def comma_separated(value: Any) -> Any:
    """A list that command lines pass as one word."""
    return [part.strip() for part in value.split(",") if part.strip()] if isinstance(value, str) else value


def _one_place(roots: tuple[str, ...]) -> tuple[str, ...]:
    for root in roots:
        if "::" in root or (not root.startswith(("/", "~", ".")) and "://" not in root):
            raise ValueError(
                f"{root!r} must be a folder such as /models, or a URL such as gs://bucket/models, unchained"
            )
    return roots


ModelRoots = Annotated[tuple[str, ...], BeforeValidator(comma_separated), AfterValidator(_one_place)]
