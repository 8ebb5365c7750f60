"""The one line that an installation shows. Oracle: pip's own words, as it said them in a real installation."""

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

PROGRAM = Path(__file__).parents[2] / "tools/install.py"
PIP = """
import sys, time
print("Collecting numpy>=2.4.6")
print("  Downloading numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl.metadata (6.6 kB)")
print("Downloading numpy-2.4.6-cp311-cp311-manylinux_2_27_x86_64.whl (16.9 MB)")
print("Using cached ray-2.60.0-cp311-cp311-manylinux_2014_x86_64.whl (71.1 MB)")
print("Installing collected packages: numpy, ray")
if sys.argv[-1] != "off": sys.exit(3)
if "slow" in sys.argv:
    try:
        sys.stdout.flush()
        open("begun", "w").close()
        time.sleep(60)
    except KeyboardInterrupt:
        time.sleep(0.5)
        open("undone", "w").close()
        sys.exit(1)
sys.exit("no space" in sys.argv and print("ERROR: no space left") or ("no space" in sys.argv))
"""


def installing(tmp_path: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs the program with another pip to its end."""
    process = start(tmp_path, *arguments)
    out, err = process.communicate(timeout=240)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start(tmp_path: Path, *arguments: str) -> subprocess.Popen[str]:
    """In a process group of its own, as a shell starts it, with the folder for its temporary files."""
    (tmp_path / "pip").mkdir()
    (tmp_path / "pip/__init__.py").touch()
    (tmp_path / "pip/__main__.py").write_text(PIP)
    return subprocess.Popen(
        [sys.executable, str(PROGRAM), "100", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin", "TMPDIR": str(tmp_path)},
        cwd=tmp_path,
        start_new_session=True,
    )


def test_quiet_when_all_is_well(tmp_path: Path) -> None:
    done = installing(tmp_path, "install", "numpy")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), "without a terminal: a line every 20 s"
    assert not list(tmp_path.glob("*.log"))


def test_what_pip_said_where_it_failed(tmp_path: Path) -> None:
    done = installing(tmp_path, "install", "no space")
    assert done.returncode == 1
    assert "ERROR: no space left" in done.stdout and "whole output is in /" in done.stdout


def test_ctrl_c_ends_it_after_pip(tmp_path: Path) -> None:
    """A pip that goes on behind a shell's prompt would meet the one of the next attempt."""
    process = start(tmp_path, "install", "slow")
    while not (tmp_path / "begun").exists():
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)
    assert process.communicate(timeout=240) == ("", "")
    assert process.returncode == 130 and (tmp_path / "undone").exists()
    assert not list(tmp_path.glob("*.log"))


def test_two_at_once_wait_for_each_other(tmp_path: Path) -> None:
    """Also for what holds the folder otherwise, as the Makefile does while it makes an environment."""
    folder = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(folder, fcntl.LOCK_EX)
    process = start(tmp_path, "install", "no space")
    assert process.stdout is not None
    assert "waiting" in process.stdout.readline()
    os.close(folder)
    out, _ = process.communicate(timeout=240)
    assert process.returncode == 1 and "ERROR: no space left" in out


def test_packages_and_megabytes_are_counted() -> None:
    sys.path.insert(0, str(PROGRAM.parent))
    try:
        import install
    finally:
        sys.path.remove(str(PROGRAM.parent))
    counted = [found for line in PIP.splitlines() if (found := install.ITEM.search(line))]
    megabytes = sum(float(item[2]) * install.UNITS[item[3]] for item in counted)
    assert abs(megabytes - (16.9 + 71.1 + 0.0066)) < 1e-6
    assert install.line(2, 88.0, 50, "ray") == "   2 packages, 88 of about 88 MB: ray"
