"""The JAX engine: usable alone from a script, no Ray in it.

from apps.llm.engine import Engine, SamplingParams
engine = Engine.load("path/to/model")
print(engine.generate(["How many days are in a week?"], SamplingParams(max_tokens=16)))

`engine.py` tells the life of a request (scheduler, loop, step, executor, sampling). Beside it:

model/      architecture, weights and forward pass
attention/  over the paged KV cache, for each platform
cpu/        native kernels for CPUs: attention and matrix products
parallel/   layout over devices, and the processes of a slice of several hosts
text/       tokens to text and back, and grammars
speculation/  guesses of an answer's next tokens, and when they pay
fairness/   limits of callers, and weighted fair queueing between them
"""

from typing import TYPE_CHECKING, Any

from apps.arrays.model_folder import CheckpointError
from apps.llm.api import (
    EngineStats,
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
from ray_configs.llm import EngineConfig

if TYPE_CHECKING:
    from apps.llm.engine.engine import Engine

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


def __getattr__(name: str) -> Any:
    """Import `Engine` on first use, so that the other names can be imported without JAX."""
    if name == "Engine":
        from apps.llm.engine.engine import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
