"""The images that a step needs are encoded before it, and their rows given back after a prompt's last one."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from apps.llm.engine.executor_protocol import Executor
from apps.llm.engine.images.rows import ImageRows
from apps.llm.engine.schedule.sequence import Work


@contextmanager
def encoded(rows: ImageRows, work: Sequence[Work], executor: Executor[Any]) -> Iterator[None]:
    """The step with this work is launched within the block.

    The images that its tokens show are encoded first, as far as they are not: about as many tokens as the step has, and
    at most one image more. Rows that no later step needs are given back: what overwrites them comes after this step.
    """
    seeing = [(item, item.seq.images) for item in work if item.seq.images is not None]
    shown = [(images.key(each), each) for item, images in seeing for each in images.within(item.start, item.stop)]
    if shown and executor.encodings is not None:
        for call in executor.encodings.calls(rows.to_encode(shown)):
            executor.encode(call)
    yield
    for item, images in seeing:
        if item.stop >= images.end:
            rows.release(images)
