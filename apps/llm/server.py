"""The Serve deployment: each replica is an engine with the HTTP dialects in front of it."""

import asyncio
from typing import Any

from fastapi import FastAPI
from ray import serve

from apps.llm.batch_api.files.storage import Storage
from apps.llm.batch_api.records import BatchStore, Limits
from apps.llm.http.app import http_app
from apps.llm.served.text_model import TextModel
from apps.llm.slice import SliceHosts, load_engine
from apps.serving.ingress.api_keys import Principals
from apps.serving.replica import EngineServer, bound
from ray_configs.llm import AdapterSource, LLMConfig


def build(config: LLMConfig) -> serve.Application:
    """Build the application of a config. `serve run` and Serve's YAML pass their arguments through LLMConfig.

    Importing this module is cheap: JAX and the engine are imported only in the replica.

    Raises:
        ValueError: Ray cannot place the config's slice.
    """
    if config.slice is not None and config.spans_hosts and config.slice.ray_refusal is not None:
        raise ValueError(f"slice {config.slice} cannot be used by a replica: {config.slice.ray_refusal}")
    return bound(LLMServer, config)


@serve.deployment
@serve.ingress()
class LLMServer(EngineServer):
    """A replica: an engine on this host's devices, or on a slice of several hosts."""

    _hosts: SliceHosts | None
    _stored_responses: int
    _batch_store: BatchStore | None
    _tokenizer_info: bool
    _adapter_loading: bool
    _adapters: asyncio.Task[None] | None = None
    """The last change of the adapters."""

    def load(self, config: LLMConfig) -> TextModel:
        self._batch_store = None
        if config.batches is not None:  # first: what is wrong with it is known at once
            self._batch_store = BatchStore(
                Storage(config.batches),
                Limits(
                    config.batch_file_mib * 2**20,
                    config.batch_lines,
                    int(config.batch_key_gib * 2**30),
                    config.batch_key_files,
                    config.batch_key_open,
                    None if config.batch_keep_days is None else config.batch_keep_days * 24 * 3600,
                ),
            )
        engine, self._hosts = load_engine(config)
        self._stored_responses, self._tokenizer_info = config.kept_responses, config.tokenizer_info
        self._adapter_loading = config.adapter_loading
        return TextModel(config.served_name, engine, config.health_step_deadline_s)

    def http_app(self, model: TextModel, keys: Principals) -> FastAPI:
        return http_app(
            model, keys, self._stored_responses, self._batch_store, self._tokenizer_info, self._adapter_loading
        )

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Load and unload LoRA adapters. Serve calls it before the first request and whenever they change.

        At the start it waits for the adapters; later it returns at once, because Serve counts a replica as not running
        while it reconfigures. An adapter that cannot be loaded leaves the rest as it is; requests for it say why.

        Args:
            user_config: `adapters`, an AdapterSource for each name.
        """
        assert isinstance(self._model, TextModel)
        changed = asyncio.create_task(self._model.hold_adapters(user_config["adapters"]))
        if self._adapters is None:
            await changed
        self._adapters = changed

    async def held_adapters(self) -> dict[str, tuple[AdapterSource, str]]:
        """See `TextModel.held_adapters`. Called by a cell's admin through a handle."""
        assert isinstance(self._model, TextModel)
        return self._model.held_adapters()

    async def check_health(self) -> None:
        """Raises when the engine's loop or a host is dead or stuck; after three failures Serve replaces the replica."""
        if self._hosts is not None:
            await self._hosts.check()
        await super().check_health()
