"""What a list says of a model that does not run."""

from types import SimpleNamespace
from typing import Any

import pytest

from apps.cell.cell import CellReconciler, LastRound, _failure
from apps.cell.desired.state import Published, PublishedAdapter
from apps.cell.reconcile import ReplicaStatus, ServeApp
from apps.cell.serve_apps import adapter_refusals
from ray_configs.cell import CellConfig
from ray_configs.llm import AdapterSource

TRACE = """A replica failed to start with exception. Retrying 17 more time(s). Error:
Traceback (most recent call last):
  File "model.py", line 51, in _read
    checkpoint = Checkpoint(location, weights=not random)
ValueError: inner

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "checkpoint.py", line 66, in __init__
    raise CheckpointError(f"{location}: no such folder")
apps.arrays.model_folder.CheckpointError: /models/x: no such folder
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
            "apps.arrays.model_folder.CheckpointError: /models/x: no such folder",
        ),
        ("DEPLOY_FAILED", "The deployment failed to start 3 times.", "The deployment failed to start 3 times."),
        ("UNHEALTHY", "A replica's health check failed.", "A replica's health check failed."),
    ],
)
def test_the_exception_of_a_traceback(status: str, message: str, reason: str | None) -> None:
    assert _failure(ServeApp(status, message, "one.0", 1, 0, ())) == reason


FAILED = "The deployment failed to start 3 times in a row. See the controller's log."


def test_the_reason_is_shown_until_the_replicas_run() -> None:
    """Serve tells it for some seconds of each attempt; the order of its messages is a recorded one."""
    model = Published(model_path="/models/x", replicas=1, order=0)
    cell = CellReconciler(CellConfig(), None, None)  # type: ignore[arg-type]

    def poll(status: str, message: str = "", version: str = "one.0", state: str = "STARTING") -> tuple[str, str | None]:
        app = ServeApp(status, message, version, 1, 0, (ReplicaStatus("r", state, "", ""),))
        cell._note_failures({"x": app})
        cell.seen = LastRound({"x": model}, {"x": app}, {"x": 1})
        return cell._state("x", model, app)

    assert poll("DEPLOYING") == ("LOADING", None)
    attempts = [("DEPLOYING", TRACE), ("DEPLOYING", ""), ("DEPLOY_FAILED", FAILED)] * 2
    for attempt, (status, message) in enumerate(attempts):
        state, reason = poll(status, message, f"one.{attempt // 3}")
        assert state == "FAILED" and reason is not None and reason.endswith("/models/x: no such folder"), attempt
    assert poll("DEPLOYING", "", "two.0") == ("LOADING", None), "another config"
    assert poll("DEPLOYING", TRACE, "two.0")[0] == "FAILED"
    assert poll("RUNNING", "", "two.0", "RUNNING") == ("LOADED", None)
    assert poll("DEPLOYING", "", "two.0") == ("LOADING", None), "it ran meanwhile"


SOURCE, OLD = AdapterSource(location="/a", version=1), AdapterSource(location="/a", version=0)


@pytest.mark.parametrize(
    ("told", "state", "active", "reason"),
    [
        ([], "LOADING", 0, None),
        ([{}, {"sql": (SOURCE, "")}], "LOADING", 0, None),
        ([{"sql": (OLD, "")}, {"sql": (SOURCE, "")}], "LOADING", 0, None),  # published anew
        ([{"sql": (SOURCE, "")}, {"sql": (SOURCE, "")}], "LOADED", 2, None),
        ([{"sql": (SOURCE, "its rank is 32")}, {"sql": (SOURCE, "its rank is 32")}], "FAILED", 0, "its rank is 32"),
    ],
)
def test_an_adapter_is_what_its_replicas_say(told: list[Any], state: str, active: int, reason: str | None) -> None:
    adapter = PublishedAdapter(model_path="/a", order=1)
    model = Published(model_path="/models/x", replicas=2, order=0, adapters={"sql": adapter})
    replicas = tuple(ReplicaStatus(str(i), "RUNNING", "", "") for i in range(2))
    refusals = adapter_refusals({"sql": SOURCE}, told)
    app = ServeApp("RUNNING", "", "one.0", 2, 0, replicas, {"sql": SOURCE}, refusals)
    admin = SimpleNamespace(registry=SimpleNamespace(adapters=lambda model: {"sql": SOURCE}))
    cell = CellReconciler(CellConfig(), admin, None)  # type: ignore[arg-type]
    cell.seen = LastRound({"/sax/t/x": model}, {"/sax/t/x": app}, {"/sax/t/x": 2})
    entry = cell.entry("/sax/t/x:sql", model)
    assert (entry["state"], entry["active_replicas"], entry["reason"]) == (state, active, reason)
    assert cell.entry("/sax/t/x", model)["state"] == "LOADED"


WAITS = "Deployment 'LLM' has 1 replicas that have taken more than 30s to be scheduled: required {'CPU': 1.0}"


@pytest.mark.parametrize(("active", "state"), [(0, "LOADING"), (1, "PARTLY_LOADED")])
def test_a_replica_that_finds_no_cpu(active: int, state: str) -> None:
    model = Published(model_path="/models/x", replicas=2, order=0)
    replicas = tuple(ReplicaStatus(str(i), "RUNNING" if i < active else "STARTING", "", "") for i in range(2))
    app = ServeApp("DEPLOYING", WAITS, "one.0", 2, 0, replicas)
    cell = CellReconciler(CellConfig(), None, None)  # type: ignore[arg-type]
    cell.seen = LastRound({"x": model}, {"x": app}, {"x": 2})
    assert cell._state("x", model, app) == (state, WAITS)
