"""A model's copies side by side on four pretended devices (XLA_FLAGS): python copies_on_devices.py FOLDER CACHE."""

import json
import sys
import threading

import numpy as np

from apps.llm.text import Engine, EngineConfig, EngineStopped, SamplingParams

folder, cache = sys.argv[1:]
PROMPTS = ["the quick brown fox", "x", "days of the week jump over the lazy dog", "a b c"] * 2
SIZES = {"dtype": "float32", "max_batch_size": 8, "max_step_tokens": 16, "max_model_len": 128, "pages": 64}


def load(**mesh: int) -> Engine:
    return Engine.load(EngineConfig(model=folder, compile_cache=cache, page_size=16, **SIZES, **mesh))


def answers(engine: Engine) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    generations = [engine.submit(prompt, params) for prompt in PROMPTS]
    return [[token for output in generation for token in output.token_ids] for generation in generations]


def read(engine: Engine) -> np.ndarray:
    """Scores and embeddings of all prompts, one after the other."""
    scores = [score for prompt in PROMPTS for suffix in engine.score(prompt, [" jumps", "x y z"]) for score in suffix]
    return np.concatenate([scores, engine.embed(PROMPTS, "mean").ravel(), engine.embed(PROMPTS, "last").ravel()])


alone = load()
expected, readings = answers(alone), read(alone)
alone.shutdown()
copies = load(data_parallel=2, tensor_parallel=2)
ranks = copies.tokens.loops
devices = [sorted(device.id for device in copy.executor.mesh.devices.flat) for copy in ranks]
batches = [copy.executor.config.max_batch_size for copy in ranks]
same = answers(copies) == expected
apart = float(np.abs(read(copies) - readings).max())
# Conversations go where their first turns are cached, and spread over both.
turns = ["the lazy dog jumps over the quick brown fox " * 2, "days of the week, one after another, " * 2] * 2
firsts = [copies.submit(f"{number} {turn}", SamplingParams(max_tokens=1)) for number, turn in enumerate(turns)]
began = [(list(first), first.cached_tokens)[1] for first in firsts]
spread = [copy.stats().prompt_tokens for copy in ranks]
went_on = [copies.submit(f"{number} {turn} and on", SamplingParams(max_tokens=1)) for number, turn in enumerate(turns)]
cached = [(list(second), second.cached_tokens)[1] for second in went_on]
steps = [copy.stats().steps for copy in ranks]
stats = copies.stats()

# One copy's device fails under load: what is there ends with an error or is answered; nothing new is taken.


def broken(*_: object) -> None:
    raise RuntimeError("this copy's chip is gone")


generations = [copies.submit(PROMPTS[0], SamplingParams(max_tokens=60, ignore_eos=True))]
idle = next(rank for rank in ranks if not rank.open)
idle.executor.launch = broken
generations.append(copies.submit(PROMPTS[1], SamplingParams(max_tokens=60, ignore_eos=True)))
ends = [list(generation)[-1] for generation in generations]
refused = checked = ""
try:
    copies.submit("x")
except EngineStopped as error:
    refused = str(error)
try:
    copies.check()
except EngineStopped as error:
    checked = str(error)
copies.shutdown()
report = {
    "devices": devices,
    "batches": batches,
    "same": same,
    "apart": apart,
    "steps": steps,
    "began": began,
    "spread": spread,
    "cached": cached,
    "compiles": stats.compiles_after_ready,
    "pages": [stats.pages_total, stats.pages_used],
    "ends": [output.error or output.finish_reason for output in ends],
    "refused": refused,
    "checked": checked,
    "threads": [thread.name for thread in threading.enumerate() if thread.name == "podslice-engine"],
}
print(json.dumps(report))
