"""The language model that CONFIG_OR_MODEL names."""

import importlib.util
import os
from collections.abc import Iterable

from ray_configs.llm import DEMO_MODEL, LLMConfig
from ray_configs.loading import ConfigError, application, assignments, changed


def language_model(source: str | None, name: str | None = None, changes: Iterable[str] = ()) -> LLMConfig:
    """The config to run.

    Args:
        source: a module or .py file that defines a Service; or a model: a local folder, a hub id, an fsspec URL or a
            registered name; None: the demo model.
        name: which application of the service, where it has several language models.
        changes: FIELD=VALUE, fields of LLMConfig.

    Raises:
        ConfigError: there is no such config, or the changes are not valid for it.
    """
    if source is not None and _names_a_config(source):
        config = application(source, LLMConfig, name=name)
    elif name is not None:
        raise ConfigError(f"--app {name} chooses an application of a config, and {source or 'the demo'} is a model")
    else:
        # A replica's process has another working directory.
        config = LLMConfig(model=os.path.abspath(source) if source and os.path.isdir(source) else source or DEMO_MODEL)
    return changed(config, assignments(changes, LLMConfig), source or "the demo")


def _names_a_config(source: str) -> bool:
    """`a.b` is a module if Python finds `a`; `lm_cloud.LmCloudSpmd2B` is a model, though it looks the same."""
    path = source.partition(":")[0]
    if path.endswith(".py"):
        return True
    first, dot, _ = path.partition(".")
    return bool(dot) and all(part.isidentifier() for part in path.split(".")) and bool(importlib.util.find_spec(first))
