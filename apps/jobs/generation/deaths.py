"""Tells occasional deaths of replicas (preempted slices) from a run that makes no progress.

Ray Data restarts dead actors forever, so a line that kills its replica, or a model that fails at its first step, would
loop forever. So an actor counts the deaths since the last answer; beyond the limit a replica refuses to start, which
fails the run.
"""

import ray

DEATHS_EACH = 3
"""The run fails after this many deaths for each replica with no answer in between."""


class TooManyDeaths(RuntimeError):
    """Replicas die without answering anything; the message gives the cause of the last death."""


@ray.remote(num_cpus=0)
class Deaths:
    def __init__(self, replicas: int):
        self._most, self._since, self._reason = DEATHS_EACH * replicas, 0, "their processes were killed"
        self._known: set[str] = set()

    def answered(self) -> None:
        """A chunk is done."""
        self._since = 0

    def reason(self, text: str) -> None:
        """A replica is about to die."""
        self._reason = text

    def started(self, actor_id: str) -> None:
        """A replica starts; if its actor started before, it has died since. Raises TooManyDeaths."""
        if actor_id not in self._known:
            self._known.add(actor_id)
            return
        self._since += 1
        if self._since > self._most:
            raise TooManyDeaths(f"replicas died {self._since} times with no answer in between: {self._reason}")
