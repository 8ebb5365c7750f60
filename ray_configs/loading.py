"""Loads the config named on a command line, a catalog module or a file. Commands about one model also take
`--app NAME` and `--set FIELD=VALUE`.
"""

import importlib
import importlib.util
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from ray_configs.base import nearest
from ray_configs.job import Job
from ray_configs.llm import LLMConfig
from ray_configs.service import Service
from ray_configs.stable_diffusion import StableDiffusionConfig

AppConfig = TypeVar("AppConfig", bound=LLMConfig | StableDiffusionConfig)

CALLED: dict[type, str] = {LLMConfig: "language model", StableDiffusionConfig: "Stable Diffusion application"}


class ConfigError(ValueError):
    """The config cannot be loaded; the text says why and what to write."""


def load(source: str) -> Service | Job:
    """The one Service or Job that a module path (`ray_configs.catalog.local`) or file (`my_service.py`) defines.

    `SOURCE:NAME` picks one of several by its variable's name. Raises ConfigError.
    """
    path, _, wanted = source.partition(":")
    try:
        module = _from_file(Path(path)) if path.endswith(".py") else _from_module(path)
    except ConfigError:
        raise
    except ValidationError as error:
        raise ConfigError(f"{path} is not a valid config{_place(error, path)}:\n{explained(error)}") from error
    except (Exception, SystemExit) as error:
        what = f"{type(error).__name__}: {error}{_place(error, path)}"
        raise ConfigError(f"{path} failed while it was read: {what}") from error
    found = {name: value for name, value in vars(module).items() if isinstance(value, Service | Job)}
    if wanted:
        if wanted not in found:
            raise ConfigError(f"{path} has no Service or Job named {wanted!r}; it has {', '.join(found) or 'none'}")
        return found[wanted]
    if not found:
        raise ConfigError(
            f"{path} defines no Service or Job; write, say, service = Service(name=..., applications=...)"
        )
    if len({id(value) for value in found.values()}) > 1:
        raise ConfigError(f"{path} defines several configs; choose one: {', '.join(f'{path}:{n}' for n in found)}")
    return next(iter(found.values()))


def catalog() -> list[str]:
    """Module paths of the ready configs."""
    import ray_configs.catalog as package

    modules = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    return [module.name for module in modules if not module.ispkg]


def explained(error: ValidationError) -> str:
    """One line per validation error: the field, then what is wrong with it."""
    return "\n".join(
        f"  {error.title}{''.join(f'.{part}' for part in item['loc'])}: {item['msg'].removeprefix('Value error, ')}"
        + (f" (got {item['input']!r})" if isinstance(item["input"], str | int | float) else "")
        for item in error.errors(include_url=False)
    )


def _from_module(path: str) -> ModuleType:
    if not all(part.isidentifier() for part in path.split(".")):
        raise ConfigError(f"{path!r} is neither a .py file nor a module path such as ray_configs.catalog.local")
    try:
        return importlib.import_module(path)
    except ModuleNotFoundError as error:
        if error.name and path != error.name and not path.startswith(error.name + "."):
            raise ConfigError(f"{path} needs the module {error.name}, which is not installed") from error
        ready = {name.rsplit(".", 1)[-1]: name for name in catalog()}
        near = [name for last, name in ready.items() if last in path or path in name]
        if not near and (close := nearest(path.rsplit(".", 1)[-1], ready)):
            near = [ready[close]]
        raise ConfigError(
            f"there is no module {path!r}. Give a Python module or file that defines a Service or Job; ready ones: "
            + ", ".join(near or catalog())
        ) from error


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise ConfigError(f"there is no file {path}")
    spec = importlib.util.spec_from_file_location(f"podslice_config_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is not a Python file: its name must end in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # pydantic looks up annotations there
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)  # as for any script: it may import its neighbours
    try:
        spec.loader.exec_module(module)
    finally:
        sys.path.remove(folder)
    return module


def _place(error: BaseException, path: str) -> str:
    """` (my_service.py, line 12)`: the config's own innermost line in the traceback, or else the innermost of all."""
    if isinstance(error, SyntaxError):
        return ""
    name = path if path.endswith(".py") else path.replace(".", os.sep) + ".py"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if frame.filename.endswith(name)]
    frame = (own or frames)[-1]
    return f" ({frame.filename}, line {frame.lineno})"


def application(source: str, *kinds: type[AppConfig], name: str | None = None) -> AppConfig:
    """Config of the only application of these kinds in the service that `source` defines, or of the one named `name`.

    Raises:
        ConfigError: there is none, or there are several and `name` is None.
    """
    service, called = load(source), " or ".join(CALLED[kind] for kind in kinds)
    if not isinstance(service, Service):
        raise ConfigError(f"{source} is a job; a {called} is part of a service")
    found = {app.serve_name: app.config for app in service.applications if isinstance(app.config, kinds)}
    if not found:
        have = ", ".join(app.serve_name for app in service.applications)
        raise ConfigError(f"{source} has no {called}; its applications are {have}")
    if name is None and len(found) > 1:
        raise ConfigError(f"{source} has more than one {called}; choose one with --app: {', '.join(found)}")
    if name is not None and name not in found:
        raise ConfigError(f"{source} has no {called} named {name!r}; it has {', '.join(found)}")
    return next(iter(found.values())) if name is None else found[name]


def assignments(pairs: Iterable[str], config: type[BaseModel]) -> dict[str, Any]:
    """Parse `FIELD=VALUE` arguments into field values; `None` and `null` become None.

    Raises:
        ConfigError: an argument has no value, or the config has no such field.
    """
    changes: dict[str, Any] = {}
    for pair in pairs:
        field, equals, value = pair.partition("=")
        if not equals or field not in config.model_fields:
            where = f"{config.__name__} in {config.__module__}"
            near = nearest(field, config.model_fields)
            meant = f"; did you mean {near}{equals}{value}?" if near else ""
            raise ConfigError(f"--set {pair!r} must be FIELD=VALUE, a field of {where}{meant}")
        changes[field] = None if value in ("None", "null") else value
    return changes


def changed(config: AppConfig, changes: Mapping[str, Any], source: str) -> AppConfig:
    """The config with some fields changed, validated again.

    Raises:
        ConfigError: the result is not valid.
    """
    try:
        return cast(AppConfig, config.model_validate(config.model_dump() | dict(changes)))
    except ValidationError as error:
        raise ConfigError(f"{source} with these changes is not a valid config:\n{explained(error)}") from error
