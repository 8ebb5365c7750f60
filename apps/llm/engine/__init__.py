"""The JAX engine: usable alone from a script, no Ray in it.

from apps.llm.engine import Engine, SamplingParams
engine = Engine.load("path/to/model")
print(engine.generate(["How many days are in a week?"], SamplingParams(max_tokens=16)))
"""

from apps.llm.engine.checkpoint import CheckpointError
from apps.llm.engine.engine import Engine
from apps.llm.engine.request import (
    EngineStopped,
    Generation,
    Output,
    Pool,
    PromptTooLong,
    QueueFull,
    RequestError,
    SamplingParams,
    TokenLogprob,
)
from apps.llm.engine.stats import EngineStats
from ray_configs.llm import EngineConfig

__all__ = [
    "CheckpointError",
    "Engine",
    "EngineConfig",
    "EngineStats",
    "EngineStopped",
    "Generation",
    "Output",
    "Pool",
    "PromptTooLong",
    "QueueFull",
    "RequestError",
    "SamplingParams",
    "TokenLogprob",
]
