"""A run's output, and what is kept beside it so that a killed run can be resumed.

Beside OUTPUT there is, while the run lasts, a folder OUTPUT.parts:

    run.json            what the run is of: input, model and defaults. A run of something else is refused
    part-000000.jsonl   answers, as they came
    .lock               held by the run that writes

OUTPUT itself appears at the end, at once and whole, when the parts are merged. Then run.json goes, and the parts: a
folder without run.json is rubbish of a finished run. Twice the output's size is needed on the disk for that moment.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import fsspec

from apps.llm.batches.parts import Answers
from apps.llm.batches.parts import Parts as SavedAnswers
from apps.serving.files import is_local, leased, locked, writing

LEASE_S = 120.0
"""A run in a bucket that says nothing for this long counts as dead."""
RUN_FILE = "run.json"


@dataclass(frozen=True)
class Chunk(Answers):
    """Answered lines, as a replica returns them."""

    prompt_tokens: int
    completion_tokens: int
    ready_at: float
    """Unix time at which the replica that answered had loaded its model."""


class OutputRefused(ValueError):
    """The output cannot be written or resumed; the message says what to do."""


class Parts(SavedAnswers):
    """The answers of a run. `open` it within the folder's lock."""

    def __init__(self, fs: fsspec.AbstractFileSystem, output: str, lines: int):
        super().__init__(fs, folder_of(output), lines)
        self._output = output

    @classmethod
    def open(
        cls, fs: fsspec.AbstractFileSystem, output: str, lines: int, run: dict[str, Any], overwrite: bool
    ) -> "Parts":
        """Begins, or goes on.

        Args:
            run: what the answers depend on; nested dicts of JSON values.
            overwrite: begin anew whatever is there.

        Raises:
            OutputRefused: there is an output already, or a run of something else.
            PartDamaged: an answer that was saved cannot be read.
        """
        parts = cls(fs, output, lines)
        fs.invalidate_cache()
        path = f"{parts._folder}/{RUN_FILE}"
        if fs.exists(path) and not overwrite:
            before = json.loads(fs.cat_file(path))
            if before != run:
                raise OutputRefused(
                    f"{parts._folder} has answers of another run, which differs in {_differences(before, run)}. "
                    "Run the same command as then to go on with it, choose another OUTPUT, or begin anew: --overwrite"
                )
            parts.load()
            return parts
        if fs.exists(output) and not overwrite:
            raise OutputRefused(f"{output} is there already. Choose another OUTPUT, or replace it: --overwrite")
        parts.clear((RUN_FILE,))
        with writing(fs, path) as file:
            file.write(json.dumps(run, indent=2).encode())
        return parts

    def finish(self) -> None:
        """Merges all parts into the output, which appears at once and whole, and removes them.

        Raises:
            OutputRefused: an answer is missing.
            PartDamaged: one cannot be read.
            OSError: it cannot be written; the parts stay.
        """
        self.save()
        with writing(self._fs, self._output) as file:
            wanted = 0
            for index, line in self.merged():
                if index != wanted:
                    break
                file.write(line)
                wanted += 1
            if wanted != len(self.done):
                raise OutputRefused(f"{self._folder} lacks line {wanted + 1}; run the same command again")
        self.clear((RUN_FILE,))


def folder_of(output: str) -> str:
    return f"{output}.parts"


@contextlib.contextmanager
def held(fs: fsspec.AbstractFileSystem, folder: str, lease_s: float = LEASE_S) -> Iterator[None]:
    """One run at a time: holds a folder, which is made for it, and goes with it if nothing else is in it then.

    Raises:
        Busy: another run does. Of one in a bucket that is known only after waiting for as long as it may be silent.
    """
    try:
        with locked(folder) if is_local(fs) else leased(fs, folder, lease_s):
            yield
    finally:
        if is_local(fs):
            with contextlib.suppress(OSError):
                os.rmdir(folder)


def _differences(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Such as `input (lines, sha256), model (dtype)`."""
    found = []
    for part in sorted(before.keys() | now.keys()):
        old, new = before.get(part), now.get(part)
        if old != new and isinstance(old, dict) and isinstance(new, dict):
            fields = sorted(name for name in old.keys() | new.keys() if old.get(name) != new.get(name))
            found.append(f"{part} ({', '.join(fields)})")
        elif old != new:
            found.append(part)
    return ", ".join(found)
