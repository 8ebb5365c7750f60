"""Measures one caller's time to first token, alone and beside one that floods.

Run by hand: `python -m tests.llm.engine.schedule.flood`.

Both are measured in turns, so that what else the machine does falls on both. Prompts are random tokens: no prefix is
found in the cache.
"""

import argparse
import random
import statistics
import threading
import time

from apps.llm.api import Caller
from apps.llm.text import Engine
from apps.llm.text_api import SamplingParams
from ray_configs.llm import DEMO_MODEL, EngineConfig

FLOOD, OTHER = Caller("flood"), Caller("other")


def ask(engine: Engine, prompt: int, answer: int, caller: Caller):
    ids = [random.randrange(20, 200) for _ in range(prompt)]
    return engine.submit(ids, SamplingParams(max_tokens=answer, ignore_eos=True), caller=caller)


def ttft(engine: Engine, prompt: int, answer: int, caller: Caller) -> float:
    """Seconds; the answer is read to its end."""
    began = time.perf_counter()
    outputs = iter(ask(engine, prompt, answer, caller))
    next(outputs)
    first = time.perf_counter() - began
    for _ in outputs:
        pass
    return first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=DEMO_MODEL)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--step-tokens", type=int, default=512)
    parser.add_argument("--prompt", type=int, default=200, help="tokens of the measured caller's prompts")
    parser.add_argument("--flood-prompt", type=int, default=200)
    parser.add_argument("--flood-answer", type=int, default=200)
    parser.add_argument("--open", type=int, default=100, help="requests of the flood at a time")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--requests", type=int, default=25, help="measured in each half of a round")
    parser.add_argument("--same", action="store_true", help="flood under the measured caller's own name")
    args = parser.parse_args()
    config = EngineConfig(model=args.model, max_batch_size=args.batch, max_step_tokens=args.step_tokens)
    engine = Engine.load(config)
    flooder = OTHER if args.same else FLOOD
    stop = threading.Event()

    def flood() -> None:
        while not stop.is_set():
            ttft(engine, args.flood_prompt, args.flood_answer, flooder)

    times: dict[str, list[float]] = {"alone": [], "flood": []}
    for _ in range(args.rounds):
        for name, threads in (("alone", 0), ("flood", args.open)):
            stop.clear()
            flooding = [threading.Thread(target=flood) for _ in range(threads)]
            for thread in flooding:
                thread.start()
            while threads and engine.stats().running < args.batch:
                time.sleep(0.01)
            for _ in range(args.requests):
                time.sleep(random.random() * 0.1)
                times[name].append(ttft(engine, args.prompt, 8, OTHER))
            stop.set()
            for thread in flooding:
                thread.join()
    for name, found in times.items():
        p95 = statistics.quantiles(found, n=20)[-1]
        print(f"{name}: TTFT median {statistics.median(found) * 1e3:.1f} ms, p95 {p95 * 1e3:.1f} ms of {len(found)}")
    print(f"preemptions {engine.stats().preemptions}")
    engine.shutdown()


if __name__ == "__main__":
    main()
