"""A supervised process: what is shown of its start, and that nothing of it is left, however it ends."""

import ast
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from tests.http_servers import StandInHandler, StandInServer
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
SUPERVISE = """
import sys
from podslice.served import read
from podslice.supervisor import ServerFailed, Supervisor
try:
    sys.exit(Supervisor(read("llm", [], int(sys.argv[1]))).run([sys.executable, "-c", sys.argv[2]]))
except ServerFailed as failure:
    sys.exit(f"FAILED {failure}")
"""
PRELUDE = """
import os, pathlib, signal, subprocess, sys, time
from apps.serving.progress import tell
marks = pathlib.Path(os.environ["MARKS"])
def mark(name):
    (marks / name).write_text(str(os.getpid()))
"""
ORPHAN = """
# A process in a session of its own, whose parent has gone.
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        mark("orphan")
        time.sleep(600)
    os._exit(0)
while not ((marks / "orphan").exists() and (marks / "orphan").read_text()):
    time.sleep(0.01)
"""
READY = """
tell({"stage": "starting Serve", "logs": str(marks), "joined": False})
tell({"part": "reading weights", "done": 1, "total": 3})
tell({"part": "reading weights", "done": 3, "total": 3})
tell({"port": int(os.environ["ANSWERING"])})
"""


class Answers(StandInHandler):
    def do_GET(self) -> None:
        self.answer()


@pytest.fixture(scope="module")
def answering() -> Iterator[int]:
    with StandInServer(Answers) as server:
        yield server.server_port


class Run:
    """A supervised program that has begun; it leaves signs of life in a folder."""

    def __init__(self, program: str, marks: Path, answering: int, stderr: int = subprocess.PIPE):
        self.marks = marks
        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISE, str(free_port()), PRELUDE + program],
            cwd=ROOT,
            env=os.environ | {"MARKS": str(marks), "ANSWERING": str(answering), "TMPDIR": str(marks)},
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )

    def mark(self, name: str) -> int:
        """Waits for a sign; the id of the process that left it."""
        file = self.marks / name
        while not (file.exists() and file.read_text()):
            assert self.process.poll() is None, self.process.communicate()
            time.sleep(0.01)
        return int(file.read_text())

    def end(self, *signals: signal.Signals) -> tuple[int, str, str]:
        """Exit status, standard output, standard error."""
        for number in signals:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=120)
        assert not list(self.marks.glob("podslice-*/")), "its temporary folder is gone"
        return self.process.returncode, out, err


@contextmanager
def ending(*processes: int) -> Iterator[None]:
    """They are there before, and not afterwards."""
    assert all(map(psutil.pid_exists, processes))
    yield
    assert not any(map(psutil.pid_exists, processes))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_during_its_start(tmp_path: Path, answering: int, number: signal.Signals) -> None:
    deaf = "signal.signal(signal.SIGINT, signal.SIG_IGN)\nmark('server')\ntime.sleep(600)"
    run = Run(ORPHAN + deaf, tmp_path, answering)
    with ending(run.mark("orphan"), run.mark("server")):
        assert run.end(number) == (130, "", "")


def test_ready_and_stopped(tmp_path: Path, answering: int) -> None:
    serves = "try:\n    mark('server')\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    mark('shut-down')"
    run = Run(ORPHAN + READY + serves, tmp_path, answering)
    with ending(run.mark("orphan"), run.mark("server")):
        lines = [run.process.stdout.readline() for _ in range(5)]
        status, _, err = run.end(signal.SIGINT)
    assert re.fullmatch(rf"podslice-demo answers at http://localhost:{answering} after \d+\.\d s\. .*\n", lines[0])
    assert lines[2].startswith(f"    curl localhost:{answering}/generate ")
    assert lines[4] == f"Ctrl-C stops it. Logs: {tmp_path}\n"
    assert status == 0 and (tmp_path / "shut-down").exists(), "it is asked before it is ended"
    assert [line.partition(" s  ")[2] for line in err.splitlines()[:2]] == ["starting Serve", "reading weights: 3 of 3"]


def test_a_second_ctrl_c_does_not_wait(tmp_path: Path, answering: int) -> None:
    stubborn = "signal.signal(signal.SIGINT, lambda *_: mark('asked'))\nmark('server')\nwhile True: time.sleep(1)"
    run = Run(READY + stubborn, tmp_path, answering)
    with ending(run.mark("server")):
        run.process.stdout.readline()
        run.process.send_signal(signal.SIGINT)
        run.mark("asked")
        assert run.end(signal.SIGINT)[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_nobody_reads_what_it_prints(tmp_path: Path, answering: int, number: signal.Signals) -> None:
    """As after `| head -1` or when the terminal has closed: it starts, serves and stops as ever."""
    serves = """
while not (marks / 'deaf').exists(): time.sleep(0.01)
""" + (READY + "mark('server')\ntry:\n    time.sleep(600)\nexcept KeyboardInterrupt:\n    mark('shut-down')")
    run = Run(ORPHAN + serves, tmp_path, answering)
    run.process.stdout.close()
    run.process.stderr.close()
    (tmp_path / "deaf").touch()
    with ending(run.mark("orphan"), run.mark("server")):
        time.sleep(2)  # it has said that it is ready
        run.process.send_signal(number)
        assert run.process.wait(120) == 0 and (tmp_path / "shut-down").exists()


def test_under_nohup_a_closed_terminal_ends_nothing(tmp_path: Path, answering: int) -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        run = Run(READY + "mark('server')\ntime.sleep(600)", tmp_path, answering)
    finally:
        signal.signal(signal.SIGHUP, before)
    run.process.stdout.readline()
    run.process.send_signal(signal.SIGHUP)
    time.sleep(1)
    assert run.process.poll() is None
    assert run.end(signal.SIGINT)[0] == 0


def test_the_server_tells_that_it_cannot_go_on(tmp_path: Path, answering: int) -> None:
    over = READY + "time.sleep(1)\ntell({'over': 'Ray has lost gcs_server'})\nmark('server')\ntime.sleep(600)"
    run = Run(ORPHAN + over, tmp_path, answering)
    with ending(run.mark("orphan"), run.mark("server")):
        status, _, err = run.end()
    assert status == 1 and err.endswith(f"FAILED Ray has lost gcs_server (logs: {tmp_path})\n")


def test_ports_that_another_server_listens_on(tmp_path: Path, answering: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Serve's own ports are not the user's affair; those of the environment may be those of the server beside it."""
    unused = free_port()
    monkeypatch.setenv("RAY_SERVE_HAPROXY_STATS_PORT", str(answering))
    monkeypatch.setenv("RAY_SERVE_HAPROXY_METRICS_PORT", str(unused))
    run = Run(
        "sys.exit(repr({n: int(os.environ[f'RAY_SERVE_HAPROXY_{n}_PORT']) for n in ('STATS', 'METRICS')}))",
        tmp_path,
        answering,
    )
    ports = ast.literal_eval(run.end()[2].splitlines()[-1])
    assert ports["STATS"] != answering and ports["METRICS"] == unused


def test_a_failure_is_told_where_the_start_is_shown(tmp_path: Path, answering: int) -> None:
    run = Run(ORPHAN + "tell({'failure': 'model.safetensors is cut short'})\ntime.sleep(600)", tmp_path, answering)
    with ending(run.mark("orphan")):
        assert run.end() == (1, "", "FAILED model.safetensors is cut short\n")


def test_the_last_words_of_who_ends_without_a_failure(tmp_path: Path, answering: int) -> None:
    status, _, err = Run("sys.exit('no such thing')", tmp_path, answering).end()
    assert (status, err) == (1, "FAILED the server has ended. The end of its log:\nno such thing\n")
    waits = "while not (marks / 'ready').exists(): time.sleep(0.01)\nsys.exit('gone')"
    later = Run(READY + waits, tmp_path, answering)
    later.process.stdout.readline()
    (tmp_path / "ready").touch()
    status, _, err = later.end()
    assert status == 1 and err.endswith(f"The end of its log:\ngone (logs: {tmp_path})\n")


def test_bars_on_a_terminal(tmp_path: Path, answering: int) -> None:
    ours, theirs = pty.openpty()
    run = Run(READY + "time.sleep(600)", tmp_path, answering, stderr=theirs)
    os.close(theirs)
    run.process.stdout.readline()
    shown = ""
    while not all(part in shown for part in ("starting Serve", "reading weights", "3/3")):
        assert select.select([ours], [], [], 60)[0], shown  # what was written, in as many pieces as it takes
        shown += os.read(ours, 1 << 16).decode(errors="replace")
    assert run.end(signal.SIGINT)[0] == 0
    os.close(ours)


def alone() -> dict[str, str]:
    """An environment in which Ray joins no cluster that another test, or somebody else, has running."""
    return os.environ | {"RAY_ADDRESS": "local"}


@pytest.mark.slow
@pytest.mark.timeout(900)  # kernels are compiled, which takes a busy machine minutes
def test_the_demo_from_its_start_to_its_end(runs: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    """The real thing; and a second one beside it, on a port of its own. Only the first has kernels to compile."""
    environment = alone() | {"NUMBA_CACHE_DIR": str(tmp_path)}
    for _ in range(2):
        port = str(free_port())
        command = [sys.executable, "-m", "podslice", "serve", "--port", port, "max_batch_size=4", "max_step_tokens=64"]
        run = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        runs.append(run)
        assert "podslice-demo answers" in run.stdout.readline(), run.communicate()
        run.stdout.readline()
        first = shlex.split(run.stdout.readline())
        asked = subprocess.run(first, capture_output=True, text=True, check=True)
        assert port in first[1] and "seven" in asked.stdout.lower()
        for header in ("Origin: http://evil.example", "Host: evil.example", "Sec-Fetch-Site: cross-site"):
            asked = subprocess.run([*first, "-H", header], capture_output=True, text=True, check=True)
            assert "no API keys" in asked.stdout, "a browser says that another site's page asks"
    stopped, killed = runs
    below = [psutil.Process(run.pid).children(recursive=True) for run in runs]
    assert all(len(processes) > 5 for processes in below)
    stopped.send_signal(signal.SIGINT)
    _, err = stopped.communicate(timeout=240)
    assert stopped.returncode == 0 and re.search(r"compiling programs: (\d+) of \1\n", err)  # how many, the CPU decides
    assert err.count(" s  compiling kernels for this CPU, once\n") == 1
    assert not any(process.is_running() for process in below[0])
    killed.kill()
    _, alive = psutil.wait_procs(below[1], timeout=60)
    assert not alive, "a command that could not stop its server leaves none behind"
    assert "compiling kernels" not in killed.communicate(timeout=240)[1]


@pytest.mark.slow
def test_a_checkpoint_that_does_not_load(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "apps/llm/demo/model", tmp_path, dirs_exist_ok=True)
    weights = tmp_path / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:20_000])
    command = [sys.executable, "-m", "podslice", "serve", "--port", str(free_port()), f"model={tmp_path}"]
    done = subprocess.run(command, cwd=ROOT, env=alone(), capture_output=True, text=True, timeout=250)
    assert done.returncode == 1 and f"\npodslice: {weights} is cut short or damaged" in done.stderr
