"""What a list says of a model that does not run."""

import pytest

from apps.cell.cell import CellReconciler, LastRound, _failure
from apps.cell.reconcile import ReplicaStatus, ServeApp
from apps.cell.state import Published
from ray_configs.cell import CellConfig

TRACE = """A replica failed to start with exception. Retrying 17 more time(s). Error:
Traceback (most recent call last):
  File "model.py", line 51, in _read
    checkpoint = Checkpoint(location, weights=not random)
ValueError: inner

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "checkpoint.py", line 66, in __init__
    raise CheckpointError(f"{location}: no such folder")
apps.serving.model_folder.CheckpointError: /models/x: no such folder
"""


@pytest.mark.parametrize(
    ("status", "message", "reason"),
    [
        ("RUNNING", "", None),
        ("DEPLOYING", "", None),
        ("DEPLOYING", "Upscaling from 1 to 2 replicas.", None),
        (
            "DEPLOYING",
            TRACE,
            "A replica failed to start with exception. Retrying 17 more time(s). "
            "apps.serving.model_folder.CheckpointError: /models/x: no such folder",
        ),
        ("DEPLOY_FAILED", "The deployment failed to start 3 times.", "The deployment failed to start 3 times."),
        ("UNHEALTHY", "A replica's health check failed.", "A replica's health check failed."),
    ],
)
def test_the_exception_of_a_traceback(status: str, message: str, reason: str | None) -> None:
    assert _failure(ServeApp(status, message, "one.0", 1, 0, ())) == reason


WAITS = "Deployment 'LLM' has 1 replicas that have taken more than 30s to be scheduled: required {'CPU': 1.0}"


@pytest.mark.parametrize(("active", "state"), [(0, "LOADING"), (1, "PARTLY_LOADED")])
def test_a_replica_that_finds_no_cpu(active: int, state: str) -> None:
    model = Published(model_path="/models/x", replicas=2, order=0)
    replicas = tuple(ReplicaStatus(str(i), "RUNNING" if i < active else "STARTING", "", "") for i in range(2))
    app = ServeApp("DEPLOYING", WAITS, "one.0", 2, 0, replicas)
    cell = CellReconciler(CellConfig(), None, None, keys=False)  # type: ignore[arg-type]
    cell.seen = LastRound({"x": model}, {"x": app}, {"x": 2})
    assert cell._state("x", model, app) == (state, WAITS)
