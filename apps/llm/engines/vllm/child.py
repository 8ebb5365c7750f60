"""The process of `vllm serve`: started, watched and ended."""

import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path

from apps.serving.logs.one_line import escaped

log = logging.getLogger("podslice")

COMMAND = "PODSLICE_VLLM"
"""Environment variable: what to run for `vllm`, such as `/opt/vllm/bin/vllm`."""
KEPT_LINES = 400
SHOWN_LINES = 15
GUARD = str(Path(__file__).with_name("guard.py"))
OURS = re.compile(r"PODSLICE_|RAY_|JAX_|XLA_|SERVE_|PYTHON")
"""Environment variables that are not its business: keys of clients among them."""
PREFIX = re.compile(r"^\(\w+ pid=\d+\) ")
AT_FAULT = re.compile(r"error|exception|invalid|not (found|supported|recogni)|unrecogni|no such", re.IGNORECASE)


def command() -> list[str]:
    """What is run for `vllm`.

    Raises:
        FileNotFoundError: there is nothing of that name.
    """
    words = shlex.split(os.environ.get(COMMAND, "vllm"))
    if not words or shutil.which(words[0]) is None:
        raise FileNotFoundError(
            f"engine='vllm' needs vLLM: no command {' '.join(words) or COMMAND!r} is on the PATH. Install it in an "
            f"environment of its own, and set {COMMAND}=/path/to/bin/vllm"
        )
    return words


class Child:
    """A running `vllm serve`.

    Args:
        arguments: see `arguments`.
        environment: variables beside this process's own.
    """

    def __init__(self, arguments: Sequence[str], environment: Mapping[str, str]):
        words = [*command(), *arguments]
        log.info("starting %s", shlex.join(words))
        kept = {name: value for name, value in os.environ.items() if not OURS.match(name)}
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._process = subprocess.Popen(
            [sys.executable, "-S", "-E", GUARD, *words],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**kept, "VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1", **environment},
            start_new_session=True,  # Ctrl-C on a terminal is for this process, which ends it
        )
        self._reader = threading.Thread(target=self._read, name="podslice-vllm-log", daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None  # a pipe
        for line in self._process.stdout:
            text = PREFIX.sub("", line.decode(errors="replace").rstrip())
            if text and " Route: " not in text:  # some sixty, at each start
                self._lines.append(text)
                log.info("vllm: %s", escaped(text))

    @property
    def ended(self) -> str | None:
        """How it ended, with its last words; None while it runs."""
        status = self._process.poll()
        if status is None:
            return None
        self._reader.join(5)
        signal = -status if status < 0 else status - 128  # its guard's own, or its own
        how = f"signal {signal}" if signal > 0 else f"status {status}"
        return f"vLLM ended with {how}{self._last_words()}"

    def _last_words(self) -> str:
        """The lines that say why, or else the last ones."""
        telling = [line for line in self._lines if AT_FAULT.search(line) and "Traceback" not in line]
        shown = telling[-SHOWN_LINES:] or list(self._lines)[-SHOWN_LINES:]
        return ":\n" + "\n".join(f"  {line}" for line in dict.fromkeys(shown)) if shown else " and said nothing"

    def close(self) -> None:
        """End it, and all that it has started. Takes seconds."""
        assert self._process.stdin is not None  # a pipe
        self._process.stdin.close()
        self._process.wait()
