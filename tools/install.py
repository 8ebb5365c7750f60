"""Runs pip and shows one line of progress: how much is downloaded, of about how much. `make` uses it.

    python tools/install.py SIZE_MB PIP'S ARGUMENTS...

Without a terminal it prints a line now and then. If pip fails, it prints the end of what pip said; the whole is in
a file, whose name it prints. Ctrl-C reaches pip too; this program ends after it, so that the next one, on the same
environment, does not meet it. Two at once wait for each other. Needs no packages.
"""

import fcntl
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO

EVERY_S = 20
"""Between two lines without a terminal."""
PATIENCE_S = 20
"""For pip to undo what it had begun, after Ctrl-C."""
INTERRUPTED = 130
TAIL = 15
UNITS = {"kB": 1e-3, "MB": 1.0, "GB": 1e3}
ITEM = re.compile(r"(?:Downloading|Using cached) (\S+)(?: \(([\d.]+) (kB|MB|GB)\))?")


def line(packages: int, megabytes: float, of: float, what: str) -> str:
    """The line of progress."""
    return f"   {packages} packages, {megabytes:.0f} of about {max(of, megabytes):.0f} MB: {what}"


def main(size_mb: str, *arguments: str) -> int:
    """Returns pip's exit status."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments, "--progress-bar", "off"]
    try:
        alone = one_at_a_time()
    except KeyboardInterrupt:
        return INTERRUPTED
    with tempfile.NamedTemporaryFile("w+", prefix="podslice-pip-", suffix=".log", delete=False) as log:
        early = list[int]()  # a Ctrl-C while pip is started, which must not be left alone
        before = signal.signal(signal.SIGINT, lambda number, _: early.append(number))
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert process.stdout is not None
        try:
            signal.signal(signal.SIGINT, before)
            if early:
                raise KeyboardInterrupt
            show(process.stdout, log, float(size_mb))
            status = process.wait()
        except KeyboardInterrupt:
            interrupted(process)
            status = INTERRUPTED
        if sys.stdout.isatty():
            print("\r\033[K", end="")
        if status not in (0, INTERRUPTED):
            log.seek(0)
            print("".join(log.readlines()[-TAIL:]) + f"pip's whole output is in {log.name}")
            return status
    os.unlink(log.name)
    os.close(alone)
    return status


def one_at_a_time() -> int:
    """Waits for others that install, or make an environment (Makefile), in this folder: two pips break each other's
    packages. Returns a descriptor that keeps others waiting until it is closed."""
    folder = os.open(".", os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        print("   another installation runs in this folder: waiting for it", flush=True)
        fcntl.flock(folder, fcntl.LOCK_EX)
    return folder


def show(said: IO[str], log: IO[str], size_mb: float) -> None:
    """Shows what pip does until it says no more, and writes all of it to the log."""
    terminal, shown = sys.stdout.isatty(), time.monotonic()
    packages, megabytes = 0, 0.0
    for sentence in said:
        log.write(sentence)
        if item := ITEM.search(sentence):
            packages += not item[1].endswith(".metadata")
            megabytes += float(item[2] or 0) * UNITS[item[3] or "MB"]
        elif not sentence.startswith("Installing collected"):
            continue
        what = "installing" if item is None else item[1].partition("-")[0]
        now = line(packages, megabytes, size_mb, what)
        if terminal:
            print(f"\r\033[K{now}", end="", flush=True)
        elif time.monotonic() - shown > EVERY_S:
            shown = time.monotonic()
            print(now, flush=True)


def interrupted(process: subprocess.Popen[str]) -> None:
    """Waits for pip, which a terminal has interrupted as well; ends it if it does not end by itself."""
    try:
        process.wait(PATIENCE_S)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        process.kill()
        process.wait()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
