"""What the prefix cache stores and forgets, published as vLLM does, so that others' routers can follow it."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ray_configs.llm import EngineConfig

if TYPE_CHECKING:
    from apps.llm.engine.kv_events.feed import PageFeed
    from apps.llm.engine.kv_events.publisher import KVEventPublisher


def publishers(
    config: EngineConfig, feeds: "Sequence[Callable[[], PageFeed]]", name_of: Callable[[bytes], str]
) -> "list[KVEventPublisher]":
    """One for each DP rank, whose `feeds` begin now; none unless the config asks for them. Raises ValueError."""
    if config.kv_events is None:
        return []
    from apps.llm.engine.kv_events.publisher import KVEventPublisher  # ZeroMQ: a start without it is shorter

    found: list[KVEventPublisher] = []
    try:
        for rank, feed in enumerate(feeds):
            found.append(KVEventPublisher(config.kv_events, feed(), config.page_size, rank, name_of))
    except ValueError:
        for publisher in found:
            publisher.close()
        raise
    return found
