"""The Serve deployment: each replica is an engine with the HTTP dialects in front of it.

Or, with `routers`, an engine alone: see `routed`.
"""

from typing import TYPE_CHECKING

from ray import serve

from apps.llm.slice import SliceHosts, load_engine
from apps.llm.words_server import WordsServer
from apps.serving.replica import bound
from ray_configs.llm import LLMConfig

if TYPE_CHECKING:
    from apps.llm.text import Engine


def build(config: LLMConfig) -> serve.Application:
    """Build the application of a config. `serve run` and Serve's YAML pass their arguments through LLMConfig.

    Importing this module is cheap: JAX and the engine are imported only in the replica.

    Raises:
        ValueError: Ray cannot place the config's slice.
    """
    if config.slice is not None and config.spans_hosts and config.slice.ray_refusal is not None:
        raise ValueError(f"slice {config.slice} cannot be used by a replica: {config.slice.ray_refusal}")
    if config.router_count:
        from apps.llm.routed import bound_routers  # and with it ZeroMQ

        return bound_routers(config)
    return bound(LLMServer, config)


@serve.deployment
@serve.ingress()
class LLMServer(WordsServer):
    """A replica: an engine on this host's devices, or on a slice of several hosts."""

    _hosts: SliceHosts | None

    def engine(self, config: LLMConfig) -> "Engine":
        engine, self._hosts = load_engine(config)
        return engine

    async def check_health(self) -> None:
        """Raises when the engine's loop or a host is dead or stuck; after three failures Serve replaces the replica."""
        if self._hosts is not None:
            await self._hosts.check()
        await super().check_health()
