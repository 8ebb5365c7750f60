"""The Kubernetes events of each object, the latest first, and times as a person reads them."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime

from kuberay.cluster.manifests import Manifest


class Events:
    """Finds the events of an object by its uid."""

    def __init__(self, events: Iterable[Manifest]):
        self._of: dict[str, list[Manifest]] = defaultdict(list)
        for event in sorted(events, key=when, reverse=True):
            self._of[event.get("involvedObject", {}).get("uid", "")].append(event)

    def last(self, about: Manifest, *reasons: str) -> Manifest | None:
        """The latest event of one of these reasons."""
        return next((event for event in self._about(about) if event.get("reason") in reasons), None)

    def last_warning(self, about: Manifest) -> Manifest | None:
        """The latest event, if it warns: a warning that something else followed is over."""
        events = self._about(about)
        return events[0] if events and events[0].get("type") == "Warning" else None

    def _about(self, about: Manifest) -> list[Manifest]:
        return self._of.get(about["metadata"].get("uid", "?"), [])


def when(event: Manifest) -> str:
    """RFC 3339 in UTC, so that the order of the strings is the order in time."""
    series = event.get("series") or {}
    times = (series.get("lastObservedTime"), event.get("lastTimestamp"), event.get("eventTime"))
    return max((time for time in times if time), default=event["metadata"].get("creationTimestamp") or "")


def since(timestamp: str | None) -> str:
    """` since Oct 3 02:14` on the reader's own clock. Not an age: text that changes by itself looks like news."""
    if not timestamp:
        return ""
    at = datetime.fromisoformat(timestamp).astimezone()
    return f" since {at:%b} {at.day} {at:%H:%M}"


def one_line(text: str | None) -> str:
    return " ".join((text or "").split())
