"""A run's output, and the files beside it that let a killed run be resumed.

During the run there is a folder OUTPUT.parts beside OUTPUT:

    run.json            what the answers depend on: input, model and defaults. A different run is refused
    part-000000.jsonl   answers, in order of completion
    .lock               held by the run that writes

OUTPUT itself appears at the end, atomically, when the parts are merged. Then run.json is deleted, then the parts: a
folder without run.json is left over from a finished run. Merging needs twice the output's size on the disk.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import fsspec

from apps.llm.batch_api.parts import Answers, Parts
from apps.serving.files import is_local, leased, locked, writing

LEASE_S = 120.0
"""A run in a bucket that has not renewed its lease for this long counts as dead."""
RUN_FILE = "run.json"


@dataclass(frozen=True)
class Chunk(Answers):
    """A chunk of answered lines, as a replica returns it."""

    prompt_tokens: int
    completion_tokens: int
    ready_at: float
    """Unix time at which the replica that answered had loaded its model."""


class OutputRefused(ValueError):
    """The output cannot be written or resumed; the message says what to do."""


class RunParts(Parts):
    """The answers of a run. Call `open` while holding the folder's lock."""

    def __init__(self, fs: fsspec.AbstractFileSystem, output: str, lines: int):
        super().__init__(fs, folder_of(output), lines)
        self._output = output

    @classmethod
    def open(
        cls, fs: fsspec.AbstractFileSystem, output: str, lines: int, run: dict[str, Any], overwrite: bool
    ) -> "RunParts":
        """Start or resume a run.

        Args:
            run: what the answers depend on; nested dicts of JSON values.
            overwrite: start over, whatever exists.

        Raises:
            OutputRefused: the output exists already, or the parts of a different run.
            PartDamaged: a saved answer cannot be read.
        """
        parts = cls(fs, output, lines)
        fs.invalidate_cache()
        path = f"{parts._folder}/{RUN_FILE}"
        if fs.exists(path) and not overwrite:
            try:
                before = dict(json.loads(fs.cat_file(path)))
            except (ValueError, TypeError, RecursionError, IsADirectoryError) as error:
                raise OutputRefused(
                    f"{path} is damaged, so nothing says whether the answers in {parts._folder} are this run's. Choose "
                    "another OUTPUT, or start over: --overwrite"
                ) from error
            if before != run:
                raise OutputRefused(
                    f"{parts._folder} has answers of another run, which differs in {_differences(before, run)}. "
                    "Run that command again to resume it, choose another OUTPUT, or start over: --overwrite"
                )
            parts.load()
            return parts
        if fs.exists(output) and not overwrite:
            raise OutputRefused(f"{output} exists already. Choose another OUTPUT, or replace it: --overwrite")
        parts.clear((RUN_FILE,))
        with writing(fs, path, private=False) as file:
            file.write(json.dumps(run, indent=2).encode())
        return parts

    def add(self, answers: Answers) -> bool:
        """Takes answers; writes a part when it is time to. False: they were there already."""
        if not self.take(answers):
            return False
        if self.due:
            self.save()
        return True

    def finish(self) -> None:
        """Merge all parts into the output, which appears atomically, and remove them.

        Raises:
            OutputRefused: an answer is missing.
            PartDamaged: one cannot be read.
            OSError: it cannot be written; the parts stay.
        """
        self.save()
        with writing(self._fs, self._output, private=False) as file:
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
    """Lock a folder for one run. It is created if needed, and removed at the end if it is empty.

    Raises:
        Busy: another run holds it. In a bucket that is known only after waiting for up to the lease's duration.
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
