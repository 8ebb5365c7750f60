"""`podslice serve` of two users of one machine. The oracle is the kernel, which knows who may do what."""

import os
import shlex
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.ports import free_port

ROOT = Path(__file__).parents[2]
USER = 64_321
"""A user needs no account to run programs."""


def within_reach(kept: Path) -> str:
    """Commands of a shell with mounts of its own, after which any user can run this Python and the project, even below
    a folder that is closed to others, such as root's home. `kept`: an empty folder."""
    needed = [ROOT, Path(sys.prefix), Path(sys.base_prefix)]
    closed = {folder for path in needed for folder in path.parents if not folder.stat().st_mode & stat.S_IXOTH}
    before, after = "", ""
    for folder in sorted(closed)[:1]:  # what is below it is hidden with it
        before, after = "", f"mount -t tmpfs -o mode=755 none {shlex.quote(str(folder))}\n"
        for i, path in enumerate(path for path in needed if folder in path.parents):
            there, here = shlex.quote(str(path)), shlex.quote(str(kept / str(i)))
            before += f"mkdir {here}\nmount --bind {there} {here}\n"
            after += f"mkdir -p {there}\nmount --bind {here} {there}\n"
    return f"set -e\n{before}{after}"


@pytest.fixture
def home() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # where others may look for what is theirs
        os.chown(name, USER, USER)
        yield Path(name)


def users_of_proxies(run: subprocess.Popen[str]) -> set[int]:
    below = psutil.Process(run.pid).children(recursive=True)
    return {process.uids().effective for process in below if process.is_running() and process.name() == "haproxy"}


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(os.geteuid() != 0, reason="only root can run programs as another user")
def test_two_users_servers_run_side_by_side(home: Path, runs: list[subprocess.Popen[str]], tmp_path: Path) -> None:
    if subprocess.run(["unshare", "--mount", "true"]).returncode:
        pytest.skip("this machine allows no mounts of one's own")
    kept = tmp_path / "kept"
    kept.mkdir()
    # Other tests' modules may have asked for direct ingress, with folders that are this process's own.
    mine = {name: value for name, value in os.environ.items() if not name.startswith("RAY_SERVE_")}
    another = f"{within_reach(kept)}exec setpriv --reuid {USER} --regid {USER} --clear-groups"
    for prefix, folder in (([], None), (["unshare", "--mount", "sh", "-c", f'{another} "$@"', "sh"], home)):
        serve = ["serve", "--port", str(free_port()), "max_batch_size=4", "max_step_tokens=8", "max_model_len=64"]
        environment = mine | {"RAY_ADDRESS": "local"} | ({"HOME": str(folder)} if folder else {})
        command = [*prefix, sys.executable, "-m", "podslice", *serve]
        run = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        runs.append(run)
        assert run.stdout is not None
        assert "podslice-demo answers" in run.stdout.readline(), run.communicate()[1]
        run.stdout.readline()
        asked = shlex.split(run.stdout.readline())
        assert "seven" in subprocess.run(asked, capture_output=True, text=True, check=True).stdout.lower()
    assert [users_of_proxies(run) for run in runs] == [{os.geteuid()}, {USER}]
    for run in runs:
        run.send_signal(signal.SIGINT)
    assert [run.wait(240) for run in runs] == [0, 0]
