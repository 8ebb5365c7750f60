"""The engine: takes requests, runs the loop, streams tokens.

    from apps.llm.engine import Engine, SamplingParams
    engine = Engine.load("meta-llama/Llama-3.2-1B-Instruct")
    for output in engine.submit("How many days are in a week?", SamplingParams(max_tokens=32)):
        print(output.text, end="", flush=True)

The life of a request:
1. `submit`, in the caller's thread, checks it and queues it; a bad or hopeless one never gets further.
2. The least busy copy of the model takes it. Most replicas have one copy; see `layout`.
3. That copy's loop, in a thread of its own, puts it into steps until it ends; see `loop`.
"""

import random
import threading
import time
from collections.abc import Sequence as Ids
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from apps.llm.engine import layout
from apps.llm.engine.answer import Answer
from apps.llm.engine.executor import ThisProcess, use_compile_cache
from apps.llm.engine.executor_protocol import Executor, Place
from apps.llm.engine.loop import EngineStats, Loop
from apps.llm.engine.model import Model
from apps.llm.engine.request import EngineStopped, Generation, QueueFull, RequestError, SamplingParams
from apps.llm.engine.scheduler import Sequence
from apps.llm.engine.structured import Grammars
from apps.llm.engine.tokenizer import ModelTokenizer
from apps.llm.engine.validation import answer_limit, check_params
from ray_configs.llm import EngineConfig, LLMConfig

CALIBRATION_TEXT = (
    "The quick brown fox jumps over 13 lazy dogs. In 1969, people first walked on the Moon; it took them 4 days.\n"
    'def area(width, height):\n    return width * height\n\n{"name": "Ada", "born": 1815, "likes": ["maths", "tea"]}\n'
    "Q: How many days are in a week?\nA: Seven. Le chat dort, der Hund bellt, el sol brilla. x = 3.14 * (2 + 7) / 5!\n"
)


class Engine:
    """A loaded model and its loops, one for each copy. Make one with `Engine.load`."""

    def __init__(
        self,
        config: EngineConfig,
        loops: list[Loop],
        tokenizer: ModelTokenizer,
        grammars: Grammars,
        max_model_len: int,
    ):
        self.config, self.tokenizer, self.max_model_len = config, tokenizer, max_model_len
        self.loops, self._grammars = loops, grammars
        self._arch = loops[0].executor.arch
        self._places = threading.Lock()  # between looking for a free place and taking it

    @classmethod
    def load(cls, config: EngineConfig | str, place: Place | None = None, **settings: Any) -> "Engine":
        """Read the model, compile every step and start the loop. Takes seconds to minutes; shows progress.

        Args:
            config: a config, or just the model: a local folder, a hub id, an fsspec URL or a registered name.
            place: where the model's devices are; default: those that this process sees.
            settings: fields of EngineConfig, beside just the model: `Engine.load("google/gemma-2b", tiny=True)`.

        Raises:
            CheckpointError, UnsupportedModel: the model cannot be read, or is of an unknown kind.
            MemoryError: the KV cache would not hold a single longest sequence.
            ValueError: the config does not fit the model or the machine.
        """
        if isinstance(config, str):
            config = EngineConfig(model=config, **settings)
        elif settings:
            raise TypeError(f"settings beside a whole config: put {', '.join(settings)} into the config")
        use_compile_cache(config.compile_cache)
        place = place or ThisProcess()
        model = Model.open(config)
        config = model.settle(config)
        max_len = model.max_len(config)
        slice = config.slice if isinstance(config, LLMConfig) else None
        chosen = layout.choose(config, model.arch, place.devices(config), slice)
        model = model.at_size(config, chosen.tensor)
        # The tokenizer's imports and tables take as long as the weights: read both at once.
        with ThreadPoolExecutor(1) as pool:
            words = pool.submit(_load_tokenizer, model)
            executors = place.load(config, model, chosen)
            try:
                calibration = words.result()[0].encode(CALIBRATION_TEXT) if config.quantize_kv_cache == "int8" else []
                _make_ready(executors, [token for token in calibration if token < model.arch.vocab_size])
                tokenizer, grammars = words.result()
            except BaseException:
                for executor in executors:
                    executor.close()
                raise
        loops = [Loop(chosen.of_copy(config), executor) for executor in executors]
        return cls(config, loops, tokenizer, grammars, max_len)

    # -- the callers' side --------------------------------------------------------------------------------------

    def submit(self, prompt: str | Ids[int], params: SamplingParams | None = None, loop: Any = None) -> Generation:
        """Queue a request and return at once. Read the result by iterating it (or, with `loop`, by `async for`).

        Raises:
            RequestError: a value out of range, or a prompt that can never fit (PromptTooLong).
            QueueFull: `max_waiting` requests wait already.
            EngineStopped: the loop has ended.
        """
        params = params or SamplingParams()
        check_params(params, self._arch.vocab_size)
        prompt_ids = self._prompt_ids(prompt)
        cache_tokens = (min(copy.executor.pages for copy in self.loops) - 1) * self.config.page_size
        limit = answer_limit(len(prompt_ids), params, self.max_model_len, cache_tokens)
        generation = Generation(prompt_ids, params)
        if loop is not None:
            generation.bind_loop(loop)
        first_seed = random.getrandbits(63) if params.seed is None else params.seed
        answers = []
        for index in range(params.n):
            matcher = None if params.json_schema is None else self._grammars.matcher(params.json_schema)
            # Folded to 31 bits, the width of the device's seeds; each answer of a request draws its own numbers.
            seed = (first_seed + index * 0x9E3779B1) % (2**31 - 1)
            seq = Sequence(generation, index, limit, seed, list(prompt_ids), len(prompt_ids))
            seq.lockstep = matcher is not None
            answers.append((seq, Answer(seq, self.tokenizer, self._arch, matcher)))
        with self._places:
            self._raise_if_stopped()
            waiting = sum(copy.waiting for copy in self.loops)
            if waiting and waiting + params.n > self.config.max_waiting:
                raise QueueFull(f"{waiting} requests wait already (max_waiting {self.config.max_waiting})")
            generation.engine = min(self.loops, key=lambda copy: copy.open)
            generation.engine.submit(answers)
        return generation

    def generate(self, prompts: Ids[str | Ids[int]], params: SamplingParams | None = None) -> list[str]:
        """The answers to many prompts, in their order: submit all (waiting when the queue is full), then read."""
        generations = []
        for prompt in prompts:
            while True:
                try:
                    generations.append(self.submit(prompt, params))
                    break
                except QueueFull:
                    time.sleep(0.01)
        texts = []
        for generation in generations:
            parts = list(generation)
            failed = next((part.error for part in parts if part.error), None)
            if failed:
                raise EngineStopped(failed)
            texts.append("".join(part.text for part in parts if part.index == 0))
        return texts

    def chat_prompt(self, messages: Ids[dict]) -> list[int]:
        """Ids of a conversation, ready to submit; RequestError when the model's chat template refuses it."""
        return self.tokenizer.chat(messages)

    def stats(self) -> EngineStats:
        return EngineStats.together([loop.stats() for loop in self.loops])

    def check(self, step_deadline_s: float = 60.0) -> None:
        """Raises EngineStopped when a loop is dead, or has been in one step for longer than the deadline."""
        for loop in self.loops:
            loop.check(step_deadline_s)

    def shutdown(self) -> None:
        """End the loops; requests still open fail with an error that says so."""
        for loop in self.loops:
            loop.shutdown()

    def _raise_if_stopped(self) -> None:
        """With one copy gone the others may go on to the end of what they have; nothing new is taken."""
        for loop in self.loops:
            loop.check_open()

    def _prompt_ids(self, prompt: str | Ids[int]) -> list[int]:
        if isinstance(prompt, str):
            return self.tokenizer.encode(prompt)
        ids = list(prompt)
        if not all(isinstance(token, int) and 0 <= token < self._arch.vocab_size for token in ids):
            raise RequestError("prompt", f"token ids must be integers from 0 to {self._arch.vocab_size - 1}")
        return ids


def _make_ready(executors: list[Executor], calibration: list[int]) -> None:
    """Caches first: each copy takes its share of what memory is free. Then all compile at once."""
    for executor in executors:
        executor.make_cache(calibration)
    with ThreadPoolExecutor(len(executors)) as pool:
        list(pool.map(lambda executor: executor.warm_up(), executors))


def _load_tokenizer(model: Model) -> tuple[ModelTokenizer, Grammars]:
    tokenizer = model.tokenizer()
    tokenizer.warm_up()
    grammars = Grammars(tokenizer, model.arch.vocab_size, model.arch.eos_token_ids)
    grammars.warm_up()
    return tokenizer, grammars
