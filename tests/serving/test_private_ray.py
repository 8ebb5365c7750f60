"""Each use of Ray's private API, in a process and a Ray cluster of its own: this one is connected to another."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.ports import serve_ports

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]  # a cluster of its own, beside others


def test_each_use() -> None:
    cases = Path(__file__).with_name("private_ray_cases.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(cases)]
    environment = os.environ | serve_ports()
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=800)
    assert done.returncode == 0, done.stdout + done.stderr
