"""Where a server on one machine keeps the files and batches of OpenAI's API, if its config names no place."""

import os
from dataclasses import replace
from pathlib import Path

from podslice.served import Served, Serving, joins_a_cluster
from ray_configs.llm import LLMConfig

FOLDER = "~/.cache/podslice/batches"
"""Beside the compile cache. Servers share it: each works on the batches of its own model."""
OFF = "off"
"""Value of `batches` for none."""
KEY_GIB, KEEP_DAYS = 10.0, 30.0
"""Bounds of that folder, unless the config has its own."""


def with_own_folder(serving: Serving) -> Serving:
    """The same, with that folder for language models without another. Without a change in a cluster that was there
    before, whose machines may not share it, and where the folder cannot be written."""
    return replace(serving, applications=tuple(map(_with_folder, serving.applications)))


def named(app: Served) -> str | None:
    """What to tell of the folder at the start; None if the application does not use it."""
    if not isinstance(app.config, LLMConfig) or app.config.batches != FOLDER:
        return None
    return (
        f"Files and batches are kept in {FOLDER}, up to {app.config.batch_key_gib:g} GiB for each key and for "
        f"{app.config.batch_keep_days or 0:g} days; batches={OFF} keeps none."
    )


def _with_folder(app: Served) -> Served:
    config = app.config
    if not isinstance(config, LLMConfig):
        return app
    if config.batches == OFF:
        return replace(app, config=config.model_copy(update={"batches": None}))
    if config.batches is not None or joins_a_cluster() or not _writable():
        return app
    bounds = {"batch_key_gib": KEY_GIB, "batch_keep_days": KEEP_DAYS}
    own = {name: value for name, value in bounds.items() if name not in config.model_fields_set}
    return replace(app, config=config.model_copy(update={"batches": FOLDER, **own}))


def _writable() -> bool:
    folder = Path(FOLDER).expanduser()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError:
        return False
    return os.access(folder, os.W_OK | os.X_OK)
