"""The arrays of a step: the scheduler's work, with each answer's sampling settings."""

from collections.abc import Mapping

import numpy as np

from apps.llm.api import MAX_BIAS
from apps.llm.engine.answer import Answer
from apps.llm.engine.execute.readout import Readout
from apps.llm.engine.pooling import PromptTask
from apps.llm.engine.sampling import Extras
from apps.llm.engine.scheduler import Sequence, Work, with_rows
from apps.llm.engine.step import HostStep, StepShape

Answers = Mapping[Sequence, Answer | PromptTask]


def filled(shape: StepShape, work: list[Work], answers: Answers, scratch: int) -> tuple[HostStep, Readout]:
    """The step that does this work, and what to read of it.

    Args:
        scratch: the slot that belongs to no sequence.
    """
    step, readout = shape.host(), Readout()
    for row, item in with_rows(work):
        seq, answer = item.seq, answers[item.seq]
        known = (0,) if item.decoding else seq.tokens[item.start : item.stop]
        # The sample of a chunk that ends inside the prompt is meaningless, and only the host can tell which sample
        # of a draft is the last accepted one. The device keeps such samples in the scratch slot.
        assert seq.slot is not None  # whatever is planned has one
        slot = seq.slot if item.samples and not item.draft else scratch
        rows = {"adapter": seq.adapter} | answer.rows
        start = step.add(known, item.stop, seq.pages, item.decoding, row=slot, **rows)
        for i, token in enumerate(item.draft, 1):
            step.add((token,), item.stop + i, seq.pages, False, row=scratch, **rows)
        if isinstance(answer, PromptTask):
            answer.want(readout, shape, start, row, item)
    return step, readout


def extras(shape: StepShape, work: list[Work], answers: Answers, vocab: int) -> Extras | None:
    """The step's token masks and logit biases; None if no sequence has any."""
    masks, biased = dict[int, np.ndarray](), dict[int, Mapping[int, float]]()
    for row, item in with_rows(work):
        answer = answers[item.seq]
        if item.samples:
            allowed = enumerate(answer.allowed(len(item.seq.tokens) - 1, item.draft), row)
            masks |= {at: mask for at, mask in allowed if mask is not None}
        if answer.bias:
            biased |= {row + i: answer.bias for i in range(1 + len(item.draft))}
    if not masks and not biased:
        return None
    words = -(-vocab // 32)
    bits = np.full((shape.seqs, words), 0xFFFFFFFF, np.uint32)
    ids = np.zeros((shape.seqs, MAX_BIAS), np.int32)
    bias = np.zeros((shape.seqs, MAX_BIAS), np.float32)
    for i, mask in masks.items():
        bits[i] = mask
    for i, biases in biased.items():
        ids[i, : len(biases)], bias[i, : len(biases)] = list(biases), list(biases.values())
    return Extras(bits, ids, bias, np.array([bool(masks), bool(biased)], np.int32))
