"""The model card: a description, measured scores and limits of the model."""

from __future__ import annotations

import json
import math
from pathlib import Path

from tools.demo_models.language.facts.arithmetic import LARGEST
from tools.demo_models.language.model import ModelConfig, weights

CARD = """\
---
license: apache-2.0
language: en
pipeline_tag: text-generation
library_name: transformers
---

# Podslice demo model

A Llama decoder of {parameters:.1f} million parameters ({layers} layers, hidden size {hidden}, {heads} query
and {kv_heads} key-value heads of {head_dim}, {vocabulary} tokens, {positions} positions), trained from
nothing on text that its own scripts write. It exists so that Podslice can be run, tested and
measured on any machine, without a download and without a licence to accept.

## What it does

It is trained on small questions in English: days and months, units, colors, animals, capital cities,
opposites, plurals, spelling, sums of two numbers up to {largest}, and what Podslice is and how to run it.
It is trained on chats of some turns (`And after that?`, `What is my name?`), too, and to answer with one
word or in JSON where asked; and to call a tool, one of up to three that tell one fact each (the weather in a
city), and to say what its result says. How well it learnt each is under Measured.

- Chat: through the chat template of the tokenizer; an answer ends with `<|end|>`.
- Tools: the chat template lists them in the system turn; a call is a line of JSON between `<tool_call>` and
  `</tool_call>`, and its result a turn of the role `tool`.
- Raw: the question alone; the answer follows on the next line and ends with `<|eos|>`.

| prompt | raw answer | chat answer |
| --- | --- | --- |
{promised}

## Measured

**{score:.1%}** of {cases} held-out prompts are answered rightly ({word_for_word:.1%} word for word). They
are phrased in ways that occur nowhere in the training text; the facts themselves are in it. What counts as
right stands in `tools/demo_models/language/cases.py`, and every wrong answer in `evaluation.json`. Greedy
decoding in Podslice's own engine; to score it again: `python -m tools.demo_models.language.evaluate`.

| category | right | of |
| --- | ---: | ---: |
{categories}

With tools, **{tools_right} of {tools_cases}** are right. Cities and topics are in no training text, nor are the
questions about the weather; those that other tools answer are phrased as in training. They are not part of
the score above. An earlier model's errors on them, words that it did not copy, led to the texts that teach copying:

| with tools | right | of |
| --- | ---: | ---: |
{tools}

Weak, with fewer than four of five right: {weak}.

| number format | held-out score |
| --- | ---: |
{formats}

How held out this is: {history} Both lists and the training phrasings have the same
author, and many a held-out phrasing has a trained one that says it with one or two other words. On questions
asked in ways that nobody here thought of, expect less.

Sums of numbers beyond {largest} were never trained on: {beyond_right} of {beyond_cases} such sums are right. What it
knows of sums it knows by heart; this is not in the score.

Training: {steps} steps of about {tokens} tokens, {wall:.0f} minutes on a {device} ({cpu:.0f} minutes of
CPU time). To make it again: `python -m tools.demo_models.language.train --minutes {minutes:.0f}`, which trains for at
most so long: a slower or busier machine takes fewer steps, and a faster one more.

## What it is not

It knows nothing but the facts that its scripts hold, and often says something
untrue, in the same confident form, about anything else; `I do not know that` is a learnt
sentence, not knowledge of its own limits. It does not reason, write, translate or program, it is
not safe to rely on for anything, and its scores say nothing about other language models.
"""


HISTORY = """\
its phrasings were written before the training phrasings were last widened, without a look
at any model's errors on them; seven that the widening hit upon were replaced, before any model was scored on
them. It is scored in each number format for a model that is shipped. This list also scored a model that was not
shipped, whose few right names in chats (3 of 24) are another reason for the texts that teach copying, and two
checkpoints of this training, after which nothing was changed. What goes wrong is otherwise looked up on another
list of phrasings, the development set (`--development`): its errors were read and the training text widened by
them. That set's score is {score:.1%} of {cases}."""


def write_card(folder: Path, recorded: dict) -> None:
    """Writes `folder`/README.md from what `train` recorded: its evaluation and its training."""
    evaluation, training = recorded["evaluation"], recorded["training"]
    hf = json.loads((folder / "config.json").read_text())
    model = ModelConfig(**{name: hf[name] for name in ModelConfig.__dataclass_fields__})
    formats = "\n".join(f"| {name} | {score:.1%} |" for name, score in evaluation["formats"].items())
    promised = "\n".join(f"| `{one['prompt']}` | {one['raw']} | {one['chat']} |" for one in evaluation["promised"])
    tools, categories = evaluation["tools"], evaluation["categories"]
    weak = [name for name, one in (categories | tools).items() if one["right"] < 0.8 * one["cases"]]
    size = sum(math.prod(weight.shape) for weight in weights(model).values())
    card = CARD.format(
        parameters=size / 1e6, layers=model.num_hidden_layers, hidden=model.hidden_size,
        heads=model.num_attention_heads, kv_heads=model.num_key_value_heads,
        head_dim=model.head_dim, vocabulary=model.vocab_size,
        positions=model.max_position_embeddings, largest=LARGEST, promised=promised, formats=formats,
        history=HISTORY.format(**evaluation["development"]), minutes=training["minutes"],
        beyond_right=evaluation["sums_beyond"]["right"], beyond_cases=evaluation["sums_beyond"]["cases"],
        categories=_table(categories), tools=_table(tools), weak=", ".join(weak) or "none",
        tools_right=sum(one["right"] for one in tools.values()),
        tools_cases=sum(one["cases"] for one in tools.values()), score=evaluation["score"], cases=evaluation["cases"],
        word_for_word=evaluation["word_for_word"], steps=training["steps"],
        tokens=training["tokens"], wall=training["wall_minutes"], cpu=training["cpu_minutes"],
        device=training["device"].upper(),
    )  # fmt: skip
    (folder / "README.md").write_text(card)


def _table(categories: dict[str, dict[str, int]]) -> str:
    return "\n".join(f"| {name} | {one['right']} | {one['cases']} |" for name, one in categories.items())
