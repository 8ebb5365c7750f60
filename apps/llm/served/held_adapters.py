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
        self._absent: dict[str, str | None] = {}
        """Adapters that it should have and has not: why they were refused; None while they are loaded."""
        self._refused: dict[str, AdapterSource] = {}
        """The sources of those that were refused."""
        self._changing = asyncio.Lock()

    async def hold(self, published: Mapping[str, AdapterSource]) -> None:
        """Load and unload until these are left, and those of the config. What is refused is logged."""
        wanted = {**self._of_config, **published}
        there = {adapter.name for adapter in self._engine.adapters()}
        absent: dict[str, str | None] = {name: None for name in wanted if name not in there}
        self._absent, self._refused = absent, {}
        refused = self._refused
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
                    absent[name] = str(error).replace(location, name)  # clients are shown this
                    refused[name] = wanted[name]
                else:
                    self._sources[name] = wanted[name]
                    absent.pop(name, None)

    def all(self) -> dict[str, tuple[AdapterSource, str]]:
        """The adapters that are loaded, and those that were refused: where each is, and why it was refused."""
        loaded = {name: (source, "") for name, source in self._sources.items()}
        return loaded | {name: (source, self._absent.get(name) or "") for name, source in self._refused.items()}

    def absence(self, name: str) -> tuple[bool, str | None]:
        """Of an adapter that is not loaded: whether it should be, and if it was refused, why."""
        return name in self._absent, self._absent.get(name)
