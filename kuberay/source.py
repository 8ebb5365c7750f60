"""The argument of a command: a typed config to render, or existing YAML."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from kuberay.render import render
from ray_configs.cloud import BUCKET_PLACEHOLDER, PROJECT_PLACEHOLDER
from ray_configs.job import Job
from ray_configs.loading import ConfigError, load
from ray_configs.service import Service

Objects = list[dict[str, Any]]


@dataclass(frozen=True)
class Placeholders:
    """Values of a config's placeholders; None keeps the placeholder."""

    project: str | None = None
    bucket: str | None = None

    def fill(self, value: Any) -> Any:
        """The value with the placeholders in its strings replaced. Keys, which may carry comments, stay."""
        if isinstance(value, BaseModel):
            fields = {name: getattr(value, name) for name in type(value).model_fields}
            changed = {name: new for name, new in self.fill(fields).items() if new != fields[name]}
            return value.model_copy(update=changed)
        if isinstance(value, dict):
            return {key: self.fill(inner) for key, inner in value.items()}
        if isinstance(value, list | tuple):
            filled = [self.fill(inner) for inner in value]
            return tuple(filled) if isinstance(value, tuple) else filled
        if isinstance(value, str):
            for placeholder, text in ((PROJECT_PLACEHOLDER, self.project), (BUCKET_PLACEHOLDER, self.bucket)):
                value = value.replace(placeholder, text) if text else value
        return value


LEFT_OPEN = Placeholders()
YAML_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Source:
    """Objects in the order to apply them, and the config they come from, if any; placeholders are filled in."""

    name: str
    objects: Objects
    config: Service | Job | None = None
    beside: tuple[object, ...] = ()
    """For `check` to report: files that were skipped or contain nothing."""

    def each(self) -> Objects:
        """The objects, with each `kind: List` replaced by its items.

        Raises ray_configs.loading.ConfigError for an object without kind or name.
        """
        from kuberay.check.reading import objects_in

        found = [inner for item in self.objects for inner in objects_in(item)]
        for item in found:
            named = isinstance(item, dict) and isinstance(item.get("metadata"), dict) and item["metadata"].get("name")
            if not (named and item.get("apiVersion") and item.get("kind")):
                raise ConfigError(f"{self.name}: every object needs apiVersion, kind and metadata.name")
        return found

    def open_placeholders(self) -> list[str]:
        """Placeholders left in the objects, such as PROJECT_ID."""
        text = repr(self.objects)
        return [name for name in (PROJECT_PLACEHOLDER, BUCKET_PLACEHOLDER) if name in text]


def read(source: str, placeholders: Placeholders = LEFT_OPEN) -> Source:
    """Read a config (module path or .py file) or manifests (.yaml file, folder, or `-` for standard input).

    Raises ray_configs.loading.ConfigError, or ValueError with file and line for YAML that cannot be read.
    """
    path = Path(source)
    if source == "-" or path.suffix in YAML_SUFFIXES or path.is_dir():
        return _manifests(source, path, placeholders)
    config = load(source)
    return Source(source, placeholders.fill(render(config)), placeholders.fill(config))


def _manifests(source: str, path: Path, placeholders: Placeholders) -> Source:
    from kuberay.check.files import Empty, skipped
    from kuberay.check.reading import read_yaml

    if source == "-":
        files = [Path("/dev/stdin")]
    elif path.is_dir():
        files = sorted(file for file in path.iterdir() if file.suffix in YAML_SUFFIXES)
        if not files:
            raise ValueError(f"there is no .yaml file in the folder {path}")
    else:
        files = [path]
    beside = {file: found for file in files if (found := skipped(file))}
    objects = [item for file in files if file not in beside for item in read_yaml(file)]
    empty = () if objects or beside else (Empty(source),)
    # Unfilled objects keep their line numbers, which findings name; filling makes plain dicts.
    objects = objects if placeholders == LEFT_OPEN else placeholders.fill(objects)
    return Source(source, objects, beside=(*beside.values(), *empty))
