"""Tells replicas that die now and then (slices that are taken back) from a run that can make no progress.

Ray Data starts a dead actor again for ever. A line that kills whoever reads it, or a model that fails at its first
step, would go on for ever too: so an actor of its own counts the deaths since the last answer, and the replica that
would be one start too many refuses, which fails the run.
"""

import ray

DEATHS_EACH = 3
"""That many deaths for each replica with no answer in between, and the run fails."""


class TooManyDeaths(RuntimeError):
    """Replicas die without answering anything; the message says what the last one died of."""


@ray.remote(num_cpus=0)
class Deaths:
    def __init__(self, replicas: int):
        self._most, self._since, self._reason = DEATHS_EACH * replicas, 0, "their processes were killed"
        self._known: set[str] = set()

    def answered(self) -> None:
        """A chunk is done."""
        self._since = 0

    def reason(self, text: str) -> None:
        """A replica is about to end."""
        self._reason = text

    def started(self, actor_id: str) -> None:
        """A replica starts; an actor that did so before was dead. Raises TooManyDeaths."""
        if actor_id not in self._known:
            self._known.add(actor_id)
            return
        self._since += 1
        if self._since > self._most:
            raise TooManyDeaths(f"replicas died {self._since} times with no answer in between: {self._reason}")
