"""How long readers wait when the engine of their answer is killed, in parts, and against a prefill of the same length.

    python -m tools.router.pauses --kills 20 --streams 8 --prompt 256

Two engines of the demo model, each in a process of its own, behind one fleet over the real wire. While streams are
answered one engine gets SIGKILL; it is started again before the next kill. A prefill alone is that of as many tokens,
on an engine with nothing else to do and nothing of them cached.
"""

import argparse
import itertools
import multiprocessing
import os
import random
import signal
import statistics
import threading
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any

os.environ.setdefault("JAX_PLATFORMS", "cpu")
START_S = 300
ANSWER = 48  # tokens
KILLED_AFTER = 0.2, 1.5  # seconds, drawn anew for each kill


def serve_engine(sizes: dict[str, Any], ready: Connection) -> None:
    """An engine's process."""
    from apps.llm.router.wire.served import ServedEngine
    from apps.llm.text import Engine
    from ray_configs.llm import DEMO_MODEL

    served = ServedEngine(Engine.load(DEMO_MODEL, **sizes).tokens, "127.0.0.1", str(os.getpid()))
    ready.send(served.endpoint)
    threading.Event().wait()


class Pair:
    """Two engines in processes, and a fleet over them."""

    def __init__(self, sizes: dict[str, Any]):
        from apps.llm.router.fleet import Fleet
        from apps.llm.router.journey import Pause

        self._sizes, self.pauses = sizes, list[Pause]()
        self._running = dict[Any, BaseProcess]()  # by their engines here
        first, process = self._started()
        self.fleet = Fleet(first.capabilities, 1e9, resumed=self.pauses.append)
        self._join(first, process)
        self._join(*self._started())

    def _started(self) -> tuple[Any, BaseProcess]:
        from apps.llm.router.wire.remote import RemoteEngine

        spawning = multiprocessing.get_context("spawn")
        ready, theirs = spawning.Pipe()
        process = spawning.Process(target=serve_engine, args=(self._sizes, theirs), daemon=True)
        process.start()
        if not ready.poll(START_S):
            raise SystemExit(f"an engine did not start within {START_S} s")
        endpoint = ready.recv()
        engine = RemoteEngine.connect(
            endpoint, lambda engine, why: self.fleet.lost(engine, why), lambda engine: self.fleet.leave(engine)
        )
        return engine, process

    def _join(self, engine: Any, process: BaseProcess) -> None:
        self._running[engine] = process
        self.fleet.join(engine, str(process.pid))

    def kill_one(self) -> None:
        """SIGKILL, at once."""
        engine = random.choice(list(self._running))
        process = self._running.pop(engine)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        process.join()

    def restore(self) -> None:
        """Start what was killed."""
        self._join(*self._started())

    def close(self) -> None:
        self.fleet.shutdown()
        for engine, process in self._running.items():
            engine.shutdown()
            process.kill()


class Asking:
    """Requests of random tokens, of which nothing is cached."""

    def __init__(self, fleet: Any, vocabulary: int):
        self._fleet, self._vocabulary, self._ids, self._draw = fleet, vocabulary, itertools.count(), random.Random(1)

    def ask(self, prompts: Sequence[int], answer: int) -> float:
        """Have prompts of these lengths answered. Returns the seconds that it took."""
        from apps.llm.api import Sampling, TokenOutput, TokenRequest

        left, ended = len(prompts), threading.Event()

        def sink(outputs: list[TokenOutput]) -> None:
            nonlocal left
            for output in outputs:
                if output.finish_reason == "error":
                    raise SystemExit(f"a stream was lost: {output.error}")
                left -= output.finish_reason is not None
            if not left:
                ended.set()

        began = time.perf_counter()
        for length in prompts:
            ids = tuple(self._draw.randrange(3, self._vocabulary) for _ in range(length))
            sampling = Sampling(seed=1, ignore_eos=True)
            request = TokenRequest(id=next(self._ids), prompt_ids=ids, limit=length + answer, sampling=sampling)
            self._fleet.submit([request], sink)
        ended.wait()
        return time.perf_counter() - began


def main() -> None:
    summary, _, more = (__doc__ or "").partition("\n")
    parser = argparse.ArgumentParser(
        description=summary, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=20, help="(default: %(default)s)")
    parser.add_argument("--streams", type=int, default=8, help="at a time (default: %(default)s)")
    parser.add_argument("--prompt", type=int, default=256, help="tokens of each prompt (default: %(default)s)")
    given = parser.parse_args()
    sizes = {"max_batch_size": 2 * given.streams, "max_step_tokens": 256, "max_model_len": given.prompt + 2 * ANSWER}
    pair = Pair(sizes)
    asking = Asking(pair.fleet, 900)
    try:
        asking.ask([given.prompt] * 4, 4)  # what is compiled or read at first use
        length = given.prompt + ANSWER // 2
        alone = statistics.median(asking.ask([length], 1) for _ in range(20))
        for number in range(given.kills):
            killer = threading.Timer(random.uniform(*KILLED_AFTER), pair.kill_one)
            killer.start()
            before = len(pair.pauses)
            while killer.is_alive():
                asking.ask([given.prompt] * given.streams, ANSWER)
            print(
                f"kill {number + 1}: {len(pair.pauses) - before} of {given.streams} streams went on elsewhere",
                flush=True,
            )
            pair.restore()
    finally:
        pair.close()
    print(f"\na prefill of {length} tokens alone: {1e3 * alone:.0f} ms; {len(pair.pauses)} pauses\n")
    print("part".ljust(10), *(name.rjust(10) for name in ("p50 ms", "p99 ms", "p50/alone", "p99/alone")))
    for part in ("noticed", "placed", "computed", "whole"):
        values = sorted(getattr(pause, part) for pause in pair.pauses)
        p50, p99 = values[len(values) // 2], values[min(len(values) - 1, int(len(values) * 0.99))]
        print(part.ljust(10), *(f"{value:10.1f}" for value in (1e3 * p50, 1e3 * p99, p50 / alone, p99 / alone)))


if __name__ == "__main__":
    main()
