"""What a token costs the host: the engine over an executor that answers at once, so that only bookkeeping is left.

    python -m tools.host_cost --streams 1,8,32,128,256

For each number of streams, in microseconds a token: the engine alone, whose outputs nobody reads; with text made of
them; and with text of answers that have stop strings, or log probabilities. The best of several runs. The demo model's
steps are computed once for each shape, for their results to have the right form.
"""

import argparse
import itertools
import os
import random
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

PROMPT = 16  # tokens


def engine_alone(engine: Any) -> Callable[[int, int, Any], float]:
    """Microseconds for a token without text: `(streams, tokens of each, params)`."""
    from apps.llm.api import TokenOutput, TokenRequest
    from apps.llm.text.requests.sampling import sampling_of

    ids = itertools.count(1 << 40)

    def run(streams: int, tokens: int, params: Any) -> float:
        left, ended = streams, threading.Event()

        def sink(outputs: list[TokenOutput]) -> None:
            nonlocal left
            left -= sum(output.finish_reason is not None for output in outputs)
            if not left:
                ended.set()

        draw, limit = random.Random(1), PROMPT + tokens
        requests = [
            TokenRequest(
                id=next(ids),
                prompt_ids=tuple(draw.randrange(3, 900) for _ in range(PROMPT)),
                limit=limit,
                sampling=sampling_of(params, index, 0, ()),
            )
            for index in range(streams)
        ]
        began = time.perf_counter()
        for request in requests:
            engine.tokens.submit([request], sink).result()
        ended.wait()
        return (time.perf_counter() - began) * 1e6 / streams / tokens

    return run


def with_text(engine: Any) -> Callable[[int, int, Any], float]:
    """Microseconds for a token with its text, and a reader for each stream."""

    def run(streams: int, tokens: int, params: Any) -> float:
        draw = random.Random(1)
        prompts = [[draw.randrange(3, 900) for _ in range(PROMPT)] for _ in range(streams)]
        began = time.perf_counter()
        generations = [engine.submit(prompt, replace(params, max_tokens=tokens)) for prompt in prompts]
        for generation in generations:
            generation.wait()
        return (time.perf_counter() - began) * 1e6 / streams / tokens

    return run


def answer_at_once(executor: Any) -> None:
    """Let the executor compute each shape of a step once, and repeat its results."""
    launch, read, results = executor.launch, executor.read, dict[Any, Any]()

    def launch_once(step: Any, constraints: Any = None, readout: Any = None) -> Any:
        if step.shape not in results:
            results[step.shape] = read(launch(step, constraints, readout))
        return step.shape

    executor.launch, executor.read = launch_once, results.__getitem__


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", default="1,8,32,128,256", help="numbers of streams (default: %(default)s)")
    parser.add_argument("--tokens", type=int, default=200, help="of each stream (default: %(default)s)")
    parser.add_argument("--repeat", type=int, default=3, help="runs, of which the best counts (default: %(default)s)")
    given = parser.parse_args()
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    from apps.llm.text import Engine, SamplingParams
    from ray_configs.llm import DEMO_MODEL

    engine: Any = Engine.load(
        DEMO_MODEL, max_batch_size=256, max_step_tokens=512, prefix_cache=False, speculation="off"
    )
    answer_at_once(engine.tokens.loops[0].executor)
    params = SamplingParams(max_tokens=1, ignore_eos=True, temperature=0.0)
    kinds = {
        "engine": (engine_alone(engine), params),
        "text": (with_text(engine), params),
        "stop strings": (with_text(engine), replace(params, stop=("\n\nQuestion:", "###"))),
        "logprobs 5": (with_text(engine), replace(params, logprobs=5)),
    }
    print("us a token".rjust(10), *(name.rjust(13) for name in kinds))
    try:
        for streams in map(int, given.streams.split(",")):
            best = [min(run(streams, given.tokens, own) for _ in range(given.repeat)) for run, own in kinds.values()]
            print(str(streams).rjust(10), *(f"{value:13.1f}" for value in best), flush=True)
    finally:
        engine.shutdown()


if __name__ == "__main__":
    main()
