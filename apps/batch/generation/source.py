"""Which language model CONFIG_OR_MODEL means."""

import importlib.util
import os
from typing import Any

from pydantic import ValidationError

from ray_configs.llm import DEMO_MODEL, LLMConfig
from ray_configs.loading import ConfigError, explained, load
from ray_configs.service import Service


def language_model(source: str | None, name: str | None = None, changes: list[str] | None = None) -> LLMConfig:
    """The config to run.

    Args:
        source: a module or .py file that defines a Service; or a model: a local folder, a hub id, an fsspec URL or a
            registered name; None: the demo model.
        name: which application of the service, where it has several language models.
        changes: FIELD=VALUE, fields of LLMConfig.

    Raises:
        ConfigError: there is no such config, or the changes do not fit it.
    """
    if source is not None and _names_a_config(source):
        config = _of_service(source, name)
    elif name is not None:
        raise ConfigError(f"--app {name} chooses an application of a config, and {source or 'the demo'} is a model")
    else:
        # A replica's process has another working directory.
        config = LLMConfig(model=os.path.abspath(source) if source and os.path.isdir(source) else source or DEMO_MODEL)
    values: dict[str, Any] = {}
    for change in changes or []:
        field, equals, value = change.partition("=")
        if not equals or field not in LLMConfig.model_fields:
            raise ConfigError(f"--set {change!r} must be FIELD=VALUE, a field of ray_configs/llm.py")
        values[field] = None if value in ("None", "null") else value
    try:
        return LLMConfig.model_validate(config.model_dump() | values)
    except ValidationError as error:
        raise ConfigError(f"{source or 'the demo'} with these changes is not valid:\n{explained(error)}") from error


def _names_a_config(source: str) -> bool:
    """`a.b` is a module if Python knows an `a`; `lm_cloud.LmCloudSpmd2B` is a model, for all it looks the same."""
    path = source.partition(":")[0]
    if path.endswith(".py"):
        return True
    first, dot, _ = path.partition(".")
    return bool(dot) and all(part.isidentifier() for part in path.split(".")) and bool(importlib.util.find_spec(first))


def _of_service(source: str, name: str | None) -> LLMConfig:
    service = load(source)
    if not isinstance(service, Service):
        raise ConfigError(f"{source} is a job; what generates is a service's language model")
    models = {app.serve_name: app.config for app in service.applications if isinstance(app.config, LLMConfig)}
    if name is None and len(models) == 1:
        return next(iter(models.values()))
    if name in models:
        return models[name]
    have = ", ".join(models) or "none"
    if name is not None:
        raise ConfigError(f"{source} has no language model named {name!r}; it has {have}")
    raise ConfigError(f"{source} must have one language model, or choose one with --app; it has {have}")
