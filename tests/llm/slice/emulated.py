"""The emulation's handle in a test's process."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[3]


class Emulated:
    """A process of emulation.py; its orders are methods here: `emulated.state()`."""

    def __init__(self, slices: int, hosts: int, chips: int):
        command = [sys.executable, str(Path(__file__).with_name("emulation.py")), *map(str, (slices, hosts, chips))]
        path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
        # A cluster of its own, whatever this process is connected to.
        environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        environment |= {"PYTHONPATH": path, "JAX_PLATFORMS": "cpu", "RAY_AUTH_MODE": "disabled"}
        self._process = subprocess.Popen(
            command, env=environment, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout.readline() == "ready\n"

    def __getattr__(self, order: str) -> Callable[..., Any]:
        def give(*arguments: Any) -> Any:
            self._process.stdin.write(json.dumps([order, *arguments]) + "\n")
            self._process.stdin.flush()
            answer = json.loads(self._process.stdout.readline())
            assert "error" not in answer, answer["error"]
            return answer["value"]

        return give

    def until(self, condition: Callable[[dict[str, Any]], Any], timeout_s: float) -> dict[str, Any]:
        """The first `state()` of which the condition holds."""
        deadline = time.monotonic() + timeout_s
        while not condition(state := self.state()):
            assert time.monotonic() < deadline, f"waited {timeout_s} s in vain: {state}, {self.status()}"
            time.sleep(0.2)
        return state

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait(240)
