"""Stops Serve so that clients lose nothing: open requests finish first, while the proxies still run.

`serve.shutdown` stops the proxies at once, and with them every answer on its way.

    python -m apps.serving.shutdown     # drains the cluster at RAY_ADDRESS, and leaves the rest to whoever stops it
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping

import ray
from ray import serve
from ray.serve.handle import DeploymentBroadcastResponse

from apps.serving import private_ray

log = logging.getLogger("podslice")

_shutdown: Callable[[], None] = serve.shutdown
CALL_S = 10
"""Time for a replica to hear of it and to answer, besides its requests' own."""
POLL_S = 0.1


def shut_down(finish: bool = True) -> None:
    """Let all applications finish their open requests, each for at most its drain timeout, and shut Serve down.

    New requests get 503 with Retry-After meanwhile. KeyboardInterrupt: do not wait any longer.

    Args:
        finish: False cuts what is open.
    """
    try:
        if finish:
            drain()
    except KeyboardInterrupt:
        pass
    except Exception:
        log.exception("open requests could not be waited for")
    _shutdown()


def finish_requests_first() -> None:
    """Make this process shut Serve down as `shut_down` does: `serve run` on Ctrl-C, and a script that calls
    `serve.shutdown`. SIGTERM still cuts both: Ray ends first."""
    if serve.shutdown is _shutdown:
        serve.shutdown = shut_down


def drain() -> None:
    """Make every replica refuse new requests, and wait until the open ones have been answered to the last byte."""
    timeouts = private_ray.drain_timeouts()
    if not timeouts:
        return
    deadline = time.monotonic() + max(timeouts.values())
    asked = {name: serve.get_app_handle(name).broadcast("drain", timeout_s) for name, timeout_s in timeouts.items()}
    asyncio.run(_all_drained(asked, timeouts))
    # A client that reads slowly has the end of its answer still in the proxy.
    while private_ray.open_at_proxies() and time.monotonic() < deadline:
        time.sleep(POLL_S)


async def _all_drained(asked: Mapping[str, DeploymentBroadcastResponse], timeouts: Mapping[str, float]) -> None:
    waiting = [asked[name].results_async(timeout_s=timeout_s + CALL_S) for name, timeout_s in timeouts.items()]
    for name, left in zip(timeouts, await asyncio.gather(*waiting, return_exceptions=True)):
        if isinstance(left, BaseException):  # its replicas may end just now
            log.warning("application %s was not drained: %s", name, left)
        elif any(left):
            log.warning("application %s still has open requests after %.0f s: %s", name, timeouts[name], left)


if __name__ == "__main__":
    ray.init(namespace="serve", log_to_driver=False)
    drain()
