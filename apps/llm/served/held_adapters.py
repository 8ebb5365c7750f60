"""The LoRA adapters that a model should have: those of its config, and those that a cell has published on it."""

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ray_configs.llm import AdapterSource

if TYPE_CHECKING:
    from apps.llm.text import Engine

log = logging.getLogger("podslice")


class HeldAdapters:
    """Loads and unloads adapters until an engine has those that it should have, and knows why one is missing."""

    def __init__(self, engine: "Engine"):
        self._engine = engine
        self._of_config = {
            name: AdapterSource(location=where, version=0) for name, where in engine.config.adapters.items()
        }
        self._sources = dict(self._of_config)
        """What is loaded: the engine has loaded its config's own."""
        self._refused: dict[str, tuple[AdapterSource, str]] = {}
        """Adapters that it should have and has not: where each is, and why it was refused."""
        self._changing = asyncio.Lock()

    async def hold(self, published: Mapping[str, AdapterSource]) -> None:
        """Load and unload until these are left, and those of the config. What is refused is logged."""
        wanted = {**self._of_config, **published}
        refused = self._refused = {}
        async with self._changing:
            gone = [name for name, source in self._sources.items() if wanted.get(name) != source]
            await asyncio.gather(*(asyncio.to_thread(self._engine.unload_adapter, name) for name in gone))
            self._sources = {name: source for name, source in self._sources.items() if name not in gone}
            for name in [name for name in wanted if name not in self._sources]:
                location = wanted[name]["location"]
                try:
                    await asyncio.to_thread(self._engine.load_adapter, name, location)
                except Exception as error:  # of the file system that the location names, too
                    log.error("adapter %s at %s was not loaded: %s", name, location, error)
                    refused[name] = wanted[name], str(error).replace(location, name)  # clients are shown this
                else:
                    self._sources[name] = wanted[name]

    def all(self) -> dict[str, tuple[AdapterSource, str]]:
        """The adapters that are loaded, and those that were refused: where each is, and why it was refused."""
        return {name: (source, "") for name, source in self._sources.items()} | self._refused
