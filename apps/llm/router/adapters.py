"""LoRA adapters of a fleet: every engine has the same ones."""

import threading
from collections.abc import Callable, Sequence

from apps.llm.api import AdapterInfo, EngineStopped, UnknownAdapter
from apps.llm.engine.interface import TokenEngine


class FleetAdapters:
    """What was loaded into all engines, and must be in each that joins. Thread-safe; one change at a time.

    Args:
        engines: those of the fleet.
    """

    def __init__(self, engines: Callable[[], Sequence[TokenEngine]]):
        self._engines = engines
        self._changing = threading.Lock()
        self._loaded: dict[str, str] = {}  # name -> location

    def all(self) -> list[AdapterInfo]:
        """Those that every engine has."""
        have = [{adapter.name: adapter for adapter in engine.adapters()} for engine in self._engines()]
        return [adapter for name, adapter in have[0].items() if all(name in each for each in have)] if have else []

    def load(self, name: str, location: str) -> AdapterInfo:
        """See `TokenEngine.load_adapter`: into every engine, or none."""
        with self._changing:
            info, loaded = None, list[TokenEngine]()
            try:
                for engine in self._engines():
                    info = engine.load_adapter(name, location)
                    loaded.append(engine)
            except BaseException:
                for engine in loaded:
                    engine.unload_adapter(name)
                raise
            if info is None:
                raise EngineStopped("there is no engine at the moment: try again later")
            self._loaded[name] = location
            return info

    def unload(self, name: str) -> None:
        """See `TokenEngine.unload_adapter`."""
        with self._changing:
            self._loaded.pop(name, None)
            missing, engines = 0, self._engines()
            for engine in engines:
                try:
                    engine.unload_adapter(name)
                except UnknownAdapter:
                    missing += 1
            if missing == len(engines):
                raise UnknownAdapter(name)

    def join(self, engine: TokenEngine, enter: Callable[[], None]) -> None:
        """Load what a new engine lacks, then let it in; no change comes between."""
        with self._changing:
            have = {adapter.name for adapter in engine.adapters()}
            for name, location in self._loaded.items():
                if name not in have:
                    engine.load_adapter(name, location)
            enter()
