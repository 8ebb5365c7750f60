"""Answers from a script, without a server: python examples/offline.py [MODEL]

MODEL is a folder, a hub id or a gs:// prefix; without one, the demo model answers.
"""

import sys

from apps.llm.text import Engine, EngineConfig, SamplingParams

QUESTIONS = ["How many days are in a week?", "How many days are in two weeks?", "Which day follows Monday?"]

model = {"model": sys.argv[1]} if sys.argv[1:] else {}
small = {"max_batch_size": 4, "max_step_tokens": 8, "max_model_len": 256}  # few programs to compile
engine = Engine.load(EngineConfig(**model, **small))
params = SamplingParams(max_tokens=32, temperature=0)
for question, generation in [(question, engine.submit(question, params)) for question in QUESTIONS]:
    print(question, "".join(output.text for output in generation).strip())
engine.shutdown()
