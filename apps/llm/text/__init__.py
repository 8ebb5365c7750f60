"""A served model in words: usable alone from a script, no Ray in it.

from apps.llm.text import Engine, SamplingParams
engine = Engine.load("path/to/model")
print(engine.generate(["How many days are in a week?"], SamplingParams(max_tokens=16)))

`engine.py` makes tokens of requests, hands them to a token engine (`apps.llm.engine`), and makes text of what it sends.
"""

from typing import TYPE_CHECKING, Any

from apps.arrays.model_folder import CheckpointError
from apps.llm.api import EngineStats, EngineStopped, Pool, PromptTooLong, QueueFull, RequestError
from apps.llm.text_api import Output, SamplingParams, TokenLogprob
from ray_configs.llm import EngineConfig

if TYPE_CHECKING:
    from apps.llm.text.engine import Engine

__all__ = [
    "CheckpointError",
    "Engine",
    "EngineConfig",
    "EngineStats",
    "EngineStopped",
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
        from apps.llm.text.engine import Engine

        return Engine
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
