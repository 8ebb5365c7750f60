"""What a list says of a model that does not run."""

import pytest

from apps.cell.cell import _failure
from apps.cell.reconcile import ServeApp

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
