"""Kubernetes events by object, latest first, and timestamps for people."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from kuberay.cluster.manifests import Manifest


class Events:
    """Events indexed by the uid of the object."""

    def __init__(self, events: Iterable[Manifest]):
        self._of: dict[str, list[Manifest]] = defaultdict(list)
        for event in sorted(events, key=when, reverse=True):
            self._of[event.get("involvedObject", {}).get("uid", "")].append(event)

    def last(self, about: Manifest, *reasons: str) -> Manifest | None:
        """The latest event of one of these reasons."""
        return next((event for event in self._about(about) if event.get("reason") in reasons), None)

    def last_warning(self, about: Manifest) -> Manifest | None:
        """The latest event if it is a warning; an older warning is out of date."""
        events = self._about(about)
        return events[0] if events and events[0].get("type") == "Warning" else None

    def _about(self, about: Manifest) -> list[Manifest]:
        return self._of.get(about["metadata"].get("uid", "?"), [])


def when(event: Manifest) -> str:
    """The event's last time in RFC 3339, UTC, which sorts as text."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return max((time for time in times if time), default=event["metadata"].get("creationTimestamp") or "")


def since(timestamp: str | None) -> str:
    """` since Oct 3 02:14` in local time. Not an age, which would change the text at every look."""
    if not timestamp:
        return ""
    at = datetime.fromisoformat(timestamp).astimezone()
    return f" since {at:%b} {at.day} {at:%H:%M}"


def one_line(text: str | None) -> str:
    return " ".join((text or "").split())
