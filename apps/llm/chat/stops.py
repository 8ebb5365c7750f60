"""Finds stop strings in a text that comes piece by piece."""

from collections.abc import Sequence


class StopStrings:
    """Holds back what may become a stop string, so that no text is sent that one could remove.

    Args:
        keep: whether the stop string is part of the text.
    """

    def __init__(self, stops: Sequence[str], keep: bool):
        self._stops, self._keep = [stop for stop in stops if stop], keep
        self._longest = max(map(len, self._stops), default=0)
        self._held = ""
        self.found: str | None = None
        """The stop string that has ended the text: the first that is complete, however the text is cut into pieces."""

    def feed(self, text: str) -> str:
        """The text that is safe to send after this piece; nothing comes after a stop string."""
        if not self._stops:
            return text
        if self.found is not None:
            return ""
        self._held += text
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := self._held.find(stop)) >= 0]
        if found:
            end, at, self.found = min(found)
            shown, self._held = self._held[: end if self._keep else at], ""
            return shown
        keep = self._overlap()
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def ends_with(self, text: str) -> bool:
        """Whether this piece, if it is text, has the end of a stop string."""
        return any(stop in self._held + text for stop in self._stops)

    def rest(self) -> str:
        """The text that is still held back, once it is certain that no stop string follows."""
        text, self._held = self._held, ""
        return text

    def _overlap(self) -> int:
        """Length of the longest suffix of the held text that is a prefix of a stop string."""
        for length in range(min(self._longest - 1, len(self._held)), 0, -1):
            if any(stop.startswith(self._held[-length:]) for stop in self._stops):
                return length
        return 0
