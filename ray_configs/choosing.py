"""Arguments of a command about one model: `CONFIG [--app NAME] [--set FIELD=VALUE]`."""

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, cast

from pydantic import BaseModel, ValidationError

from ray_configs.llm import LLMConfig
from ray_configs.loading import ConfigError, explained, load
from ray_configs.service import Service
from ray_configs.stable_diffusion import StableDiffusionConfig

AppConfig = TypeVar("AppConfig", bound=LLMConfig | StableDiffusionConfig)

CALLED: dict[type, str] = {LLMConfig: "language model", StableDiffusionConfig: "Stable Diffusion application"}


def application(source: str, *kinds: type[AppConfig], name: str | None = None) -> AppConfig:
    """The one application of these kinds in the service that a module or file defines, or the one of that name.

    Raises:
        ConfigError: there is none, or several and no name.
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
    """`FIELD=VALUE`s as values of a config's fields; None and null say None.

    Raises:
        ConfigError: one has no value, or there is no such field.
    """
    changes: dict[str, Any] = {}
    for pair in pairs:
        field, equals, value = pair.partition("=")
        if not equals or field not in config.model_fields:
            where = f"{config.__name__} in {config.__module__}"
            raise ConfigError(f"--set {pair!r} must be FIELD=VALUE, a field of {where}")
        changes[field] = None if value in ("None", "null") else value
    return changes


def changed(config: AppConfig, changes: Mapping[str, Any], source: str) -> AppConfig:
    """The config with some fields changed, and checked again.

    Raises:
        ConfigError: they do not fit it.
    """
    try:
        return cast(AppConfig, config.model_validate(config.model_dump() | dict(changes)))
    except ValidationError as error:
        raise ConfigError(f"{source} with these changes is not a valid config:\n{explained(error)}") from error
