"""What the user is told of a failed start."""

from ray.exceptions import RayTaskError

from apps.serving.progress import reason


def test_errors_meant_for_users_are_complete_and_others_have_their_name() -> None:
    assert reason(ValueError("model: no such folder")) == "model: no such folder"
    assert reason(ValueError()) == "ValueError: "
    assert reason(RuntimeError("out of luck")) == "RuntimeError: out of luck"


def test_what_another_process_raised_is_told_without_its_traceback() -> None:
    raised = RayTaskError("ready", "Traceback (most recent call last):\n  …", RuntimeError("the port is taken"))
    assert reason(raised.as_instanceof_cause()) == "RuntimeError: the port is taken"
