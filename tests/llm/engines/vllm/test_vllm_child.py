"""The guard of the child process: real processes, killed in every way."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from apps.llm.engines.vllm import guard
from apps.llm.engines.vllm.child import COMMAND, Child
from tests.llm.serve.serving import wait_until

TREE = "sh -c 'setsid sleep 1000 & sleep 1000 & echo started; wait' --"
"""A command that has processes of its own, one of them in another session, as vLLM has."""


def alive(pids: list[int]) -> list[int]:
    found = []
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                found.append(pid)
    return found


def tree(of: int) -> list[int]:
    """Once the command's own process is there."""
    wait_until(lambda: sum("1000" in child.cmdline() for child in psutil.Process(of).children(recursive=True)) >= 2)
    return [child.pid for child in psutil.Process(of).children(recursive=True)]


def test_closing_ends_all_that_it_has_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(COMMAND, TREE)
    child = Child(["serve"], {})
    pids = tree(child._process.pid)
    assert child.ended is None and len(alive(pids)) >= 4
    child.close()
    assert alive(pids) == []
    assert child.ended is not None


def test_it_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    program = Path(tmp_path, "parent.py")
    program.write_text(
        "import time\nfrom apps.llm.engines.vllm.child import Child\nchild = Child(['serve'], {})\ntime.sleep(1000)\n"
    )
    repository = Path(__file__).parents[4]
    environment = {**os.environ, COMMAND: TREE, "PYTHONPATH": str(repository)}
    parent = subprocess.Popen([sys.executable, program], env=environment, cwd=repository)
    pids = tree(parent.pid)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    wait_until(lambda: not alive(pids))


def test_it_ends_where_only_the_first_of_its_processes_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    """As Ray does with a worker's children."""
    monkeypatch.setenv(COMMAND, TREE)
    child = Child(["serve"], {})
    pids = tree(child._process.pid)
    child._process.kill()
    wait_until(lambda: not alive(pids))
    assert child.ended == "vLLM ended with signal 9:\n  started"
    child.close()


def test_one_that_ignores_sigterm_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    short = "import guard; guard.GRACE_S = 0.2; guard.main(['sh', '-c', 'trap \"\" TERM; echo up; sleep 1000'])"
    process = subprocess.Popen(
        [sys.executable, "-c", short],
        cwd=Path(guard.__file__).parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.readline() == b"up\n"
    pids = [child.pid for child in psutil.Process(process.pid).children(recursive=True)]
    process.stdin.close()
    process.wait(20)
    assert pids and alive(pids) == []


def test_how_it_ended_and_its_last_words(monkeypatch: pytest.MonkeyPatch) -> None:
    says = "sh -c 'echo INFO loading; echo ValueError: model type x is not supported >&2; exit 3' --"
    monkeypatch.setenv(COMMAND, says)
    child = Child(["serve"], {})
    wait_until(lambda: child.ended is not None)
    assert child.ended == "vLLM ended with status 3:\n  ValueError: model type x is not supported"
    monkeypatch.setenv(COMMAND, "sh -c 'kill -9 $$' --")
    child = Child(["serve"], {})
    wait_until(lambda: child.ended is not None)
    assert child.ended == "vLLM ended with signal 9 and said nothing"


def test_it_knows_no_keys_of_clients(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("PODSLICE_API_KEYS", "secret")
    monkeypatch.setenv(COMMAND, "env")
    with caplog.at_level("INFO", logger="podslice"):
        child = Child([], {"VLLM_API_KEY": "own"})
        wait_until(lambda: child.ended is not None)
        time.sleep(0.1)
    assert "VLLM_API_KEY=own" in caplog.text
    assert "secret" not in caplog.text and "PYTHONPATH" not in caplog.text
