"""examples/cell_session.py, run against a cell on Ray Serve."""

import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from ray import serve

from apps.cell import build
from ray_configs.cell import CellConfig

PROGRAM = Path(__file__).parents[2] / "examples" / "cell_session.py"


@pytest.mark.slow
def test_the_session_of_the_example(serve_url: str, tmp_path: Path) -> None:
    serve.run(build(CellConfig(name="tried", state_uri=str(tmp_path))), name="tried", route_prefix="/tried")
    try:
        done = subprocess.run(
            [sys.executable, str(PROGRAM), f"{serve_url}/tried"], capture_output=True, text=True, timeout=250
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert done.stdout.endswith("There are seven days in a week.\n")
        assert httpx.get(f"{serve_url}/tried/listall").json() == []
    finally:
        serve.delete("tried")
