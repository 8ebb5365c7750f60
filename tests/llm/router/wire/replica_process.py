"""A replica in a process of its own: `MODEL CACHE`. Prints its endpoint; its steps take long."""

import sys
import time

import msgspec

from apps.llm.router.wire.served import ServedEngine
from apps.llm.text import Engine, EngineConfig
from tests.llm.engine import tiny_models
from tests.llm.router.wire.conftest import slowed

if __name__ == "__main__":
    sizes = {"model": sys.argv[1], "compile_cache": sys.argv[2], "max_adapters": 2, "max_adapter_rank": 8}
    engine = Engine.load(EngineConfig(**(tiny_models.SMALL | sizes))).tokens
    for loop in engine.loops:  # type: ignore[attr-defined]
        loop.executor.read = slowed(loop.executor.read)
    served = ServedEngine(engine, "127.0.0.1", "replica-1")
    print(msgspec.msgpack.encode(served.endpoint).hex(), flush=True)
    time.sleep(3600)
