"""A finished batch's output file and error file. A file without lines is not created."""

import json
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import IO

from apps.llm.batch_api.files.stored_files import Files
from apps.llm.batch_api.input_file import InputFile, missing
from apps.llm.batch_api.lines import custom_id, dump, unanswered
from apps.llm.batch_api.parts import Parts
from apps.llm.batch_api.records import OpenBatch
from apps.llm.batch_api.validation import Batch

EXPIRED = "This request was not executed before the completion window expired."


def line_name(opened: OpenBatch, index: int) -> str:
    """A name for the line that is unique over all batches."""
    return f"{opened.id.removeprefix('batch_')}_{index}"


class Outputs:
    """The two files. Blocking.

    Args:
        ids: ids of the output and error file, chosen beforehand so that a retry writes the same files.
    """

    def __init__(self, files: Files, opened: OpenBatch, ids: Sequence[str]):
        self._files, self._opened, self._ids = files, opened, ids
        self._good, self._bad = (_Output(partial(files.writing, opened.owner, id_)) for id_ in ids)

    def write(self, parts: Parts | None, source: InputFile | None, expired: bool) -> Batch:
        """Writes both files; returns the batch's fields about them. Raises PartDamaged, with neither file written.

        Args:
            parts, source: the saved answers and the input file; None if work on the batch never began.
            expired: whether each line without an answer gets a `batch_expired` error.
        """
        with ExitStack() as stack:
            for index, line in parts.merged() if parts else ():
                try:
                    is_good = json.loads(line)["response"]["status_code"] == 200
                except (ValueError, KeyError, TypeError, RecursionError):
                    raise parts.damaged_at(index) from None  # type: ignore[union-attr]
                (self._good if is_good else self._bad).write(stack, line)
            if expired and parts and source:
                for todo in missing(source, parts.done):
                    for index, text in todo.lines(source):
                        name = line_name(self._opened, index)
                        error = unanswered(name, custom_id(text), "batch_expired", EXPIRED)
                        self._bad.write(stack, dump(error).encode() + b"\n")
        found = {}
        for kind, id_, output in zip(("output", "error"), self._ids, (self._good, self._bad)):
            if output.lines:
                name = f"{self._opened.id}_{kind}.jsonl"
                self._files.add(self._opened.owner, id_, output.size, name, "batch_output")
            found[f"{kind}_file_id"] = id_ if output.lines else None
        total = source.lines if source else len(parts.done) if parts else 0
        return found | {"request_counts": {"total": total, "completed": self._good.lines, "failed": self._bad.lines}}

    def remove_unless_named(self, end: Batch | None) -> None:
        """Removes each file that `end` does not name, after another replica ended the batch first."""
        named = {(end or {}).get(name) for name in ("output_file_id", "error_file_id")}
        for id_, output in zip(self._ids, (self._good, self._bad)):
            if output.lines and id_ not in named:
                self._files.delete(self._opened.owner, id_)


class _Output:
    """A file that is opened at its first line."""

    def __init__(self, opened: Callable[[], AbstractContextManager[IO[bytes]]]):
        self._opened = opened
        self._file: IO[bytes] | None = None
        self.lines = self.size = 0

    def write(self, stack: ExitStack, line: bytes) -> None:
        if self._file is None:
            self._file = stack.enter_context(self._opened())
        self._file.write(line)
        self.lines += 1
        self.size += len(line)
