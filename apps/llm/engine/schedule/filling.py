"""The arrays of a step: the scheduler's work, with each answer's sampling settings."""

from collections.abc import Mapping
from collections.abc import Sequence as Ids

import numpy as np

from apps.llm.api import MAX_BIAS
from apps.llm.engine.execute.readout import Readout
from apps.llm.engine.execute.sampling import TokenConstraints
from apps.llm.engine.execute.step import FLOAT_ROWS, SETTINGS, HostStep, StepRows, StepShape
from apps.llm.engine.schedule.answer import Answer
from apps.llm.engine.schedule.pooling import PromptTask
from apps.llm.engine.schedule.sequence import Sequence, Work, with_rows

Answers = Mapping[Sequence, Answer | PromptTask]


class SlotTable:
    """What stays the same from step to step, of the sequences in the batch, by their slots: a step gathers its rows.

    Args:
        slots: how many a batch has; one more keeps the samples that nobody wants.
        max_pages: of the longest sequence.
    """

    def __init__(self, slots: int, max_pages: int):
        self.scratch = slots
        self._settings = np.zeros((len(SETTINGS), slots), np.int32)
        self._pages = np.zeros((slots, max_pages), np.int32)
        self._known = [0] * slots  # pages of each slot's sequence that are in the table

    def enter(self, slot: int, settings: Mapping[str, float]) -> None:
        """Give a slot to a sequence. Settings that are not given are 0."""
        self._settings[:, slot] = 0
        for name, value in settings.items():
            self._settings[SETTINGS.index(name), slot] = (
                np.float32(value).view(np.int32) if name in FLOAT_ROWS else value
            )
        self._pages[slot], self._known[slot] = 0, 0

    def add_pages(self, slot: int, pages: Ids[int]) -> None:
        """Take the pages that a sequence has got since it entered; it gives none back while it has the slot."""
        known, count = self._known[slot], len(pages)
        if known != count:
            self._pages[slot, known:count] = pages[known:]
            self._known[slot] = count

    def step(self, shape: StepShape, rows: StepRows) -> HostStep:
        """The step of these rows."""
        slots = np.array(rows.slots, np.intp)
        columns = max((self._known[slot] for slot in rows.slots), default=0)
        step = shape.host()
        step.fill(rows, self._settings[:, slots], self._pages[slots, :columns])
        return step


def build_step(shape: StepShape, work: list[Work], answers: Answers, table: SlotTable) -> tuple[HostStep, Readout]:
    """The step that does this work, and what to read of it."""
    rows, readout = StepRows(), Readout()
    for row, item in with_rows(work):
        seq = item.seq
        slot = seq.slot
        assert slot is not None  # whatever is planned has one
        table.add_pages(slot, seq.pages)
        if item.decoding:
            start = rows.add(slot, item.stop, slot, None)
            if seq.images is not None:
                rows.seen.append((start, seq.images.seen(item.start, item.stop)))
            continue
        # The sample of a chunk that ends inside the prompt is meaningless, and only the host can tell which sample
        # of a draft is the last accepted one. The device keeps such samples in the scratch slot.
        kept = slot if item.samples and not item.draft else table.scratch
        start = rows.add(slot, item.stop, kept, seq.tokens[item.start : item.stop])
        for i, token in enumerate(item.draft, 1):
            rows.add(slot, item.stop + i, table.scratch, (token,))
        if seq.images is not None:
            rows.seen.append((start, seq.images.seen(item.start, item.stop + len(item.draft))))
            if shape.spans:
                spans = seq.images.spans(item.start, item.stop)
                rows.spans += [(start + first, count, end) for first, count, end in spans]
        answer = answers[seq]
        if isinstance(answer, PromptTask):
            answer.want(readout, shape, start, row, item)
    return table.step(shape, rows), readout


def build_constraints(shape: StepShape, work: list[Work], answers: Answers, vocab: int) -> TokenConstraints | None:
    """The step's token masks and logit biases; None if no sequence has any."""
    masks, biased = dict[int, np.ndarray](), dict[int, Mapping[int, float]]()
    for row, item in with_rows(work):
        answer = answers[item.seq]
        if isinstance(answer, PromptTask) or answer.free:
            continue
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
    return TokenConstraints(bits, ids, bias, np.array([bool(masks), bool(biased)], np.int32))
