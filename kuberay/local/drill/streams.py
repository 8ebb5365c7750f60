"""The client of a drill: streams asked again and again, each answer held against the undisturbed one."""

import json
import threading
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from kuberay.local import LocalError
from kuberay.local.drill.kinds import KINDS, TOKENS

STREAMS = 16
DEADLINE_S = 600.0
"""How long a client waits for its answer. One that takes longer is lost."""
SHOWN = 5
"""Failures that a verdict shows; all are counted."""
GROWING = ("text", "content", "reasoning", "arguments")
"""Texts that come in parts."""
DIGITS = 1e-3
"""By how much a log probability may differ: a continued answer's come from a prefill, which adds in another order."""


@dataclass
class DrillCounts:
    """What became of the streams, over all runs that add to one file."""

    kills: int = 0
    """Blows of the drill's kind."""
    answers: int = 0
    """Complete ones, wrong ones included."""
    lost: int = 0
    """Refused, ended by an error or cut, or not complete in time."""
    wrong: int = 0
    """Complete, but not what the undisturbed service answers."""
    longest_pause_s: float = 0.0
    """Longest time that a stream waited for its next token, or for its first."""
    longest_recovery_s: float = 0.0
    """Longest time until the service was whole again."""

    @classmethod
    def read(cls, path: Path | None) -> "DrillCounts":
        """Raises LocalError if the file holds something else."""
        if path is None or not path.exists():
            return cls()
        try:
            return cls(**json.loads(path.read_text()))
        except (OSError, ValueError, TypeError) as error:
            raise LocalError(f"--counts {path}: cannot be read ({error}); remove it, or name another file") from error

    def write(self, path: Path | None) -> None:
        if path is not None:
            written = path.with_suffix(".new")
            written.write_text(json.dumps(asdict(self)))
            written.rename(path)


class LostStream(Exception):
    """A stream was lost; the text says how."""


LOST = (httpx.HTTPError, LostStream, ValueError, KeyError)
"""The last two: what was sent is no event."""


class Streams:
    """Asks every kind until it is stopped. `record` first, while nothing is disturbed."""

    def __init__(self, url: str, model: str, key: str | None, counts: DrillCounts):
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=None)
        # trust_env: ignore proxies in the environment for this local service.
        self._client = httpx.Client(base_url=url, headers=headers, timeout=DEADLINE_S, limits=limits, trust_env=False)
        self._model, self.counts = model, counts
        self._expected: dict[str, Any] = {}
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []
        self._stopping, self._may_ask = threading.Event(), threading.Event()
        self._may_ask.set()
        self.left_out: dict[str, str] = {}
        """Why the service answers a kind not at all, such as chats of a model without a template."""
        self.failures: list[str] = []

    def record(self) -> None:
        """Ask each kind once, alone. Raises LocalError if none is answered."""
        for kind in KINDS:
            try:
                self._expected[kind], _ = self._ask(kind)
            except LOST as error:
                self.left_out[kind] = str(error)
        if not self._expected:
            raise LocalError(f"the service answers no request, undisturbed as it is: {self.left_out['greedy']}")

    def start(self) -> None:
        for number in range(STREAMS):
            self._threads.append(threading.Thread(target=self._again_and_again, args=(number,), daemon=True))
            self._threads[-1].start()

    def stop(self) -> None:
        """Ask no more; `running` says when the open ones have ended."""
        self._stopping.set()
        self._may_ask.set()

    def hold(self) -> None:
        """Ask nothing until `go_on`; the open ones go on."""
        self._may_ask.clear()

    def go_on(self) -> None:
        self._may_ask.set()

    @property
    def running(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def pages_used(self) -> float | None:
        """Share of the KV cache that requests hold, of the replica that holds most; None: nobody says."""
        try:
            lines = self._client.get("/metrics", timeout=10).text.splitlines()
        except httpx.HTTPError:
            return None
        used = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith("vllm:kv_cache_usage_perc{")]
        return max(used, default=None)

    def _again_and_again(self, number: int) -> None:
        kinds = list(self._expected)
        while self._may_ask.wait() and not self._stopping.is_set():
            kind = kinds[number % len(kinds)]
            number += 1
            try:
                answer, pause_s = self._ask(kind)
            except LOST as error:
                self._note(kind, f"lost: {error or type(error).__name__}", lost=1)
                time.sleep(1)  # as a client would before it tries again
            else:
                wrong = not alike(answer, self._expected[kind])
                self._note(
                    kind,
                    "wrong: not the undisturbed answer" if wrong else "",
                    answers=1,
                    wrong=int(wrong),
                    pause_s=pause_s,
                )

    def _note(
        self, kind: str, failure: str, answers: int = 0, lost: int = 0, wrong: int = 0, pause_s: float = 0
    ) -> None:
        with self._lock:
            self.counts.answers += answers
            self.counts.lost += lost
            self.counts.wrong += wrong
            self.counts.longest_pause_s = max(self.counts.longest_pause_s, pause_s)
            if failure and len(self.failures) < SHOWN:
                self.failures.append(f"{kind}: {failure}")

    def _ask(self, kind: str) -> tuple[Any, float]:
        """The answer, put together, and its longest pause. Raises LostStream or httpx.HTTPError if it is lost."""
        route, body = KINDS[kind]
        began = latest = time.monotonic()
        pause_s, answer, complete = 0.0, None, False
        asked = {"model": self._model, "stream": True, "max_tokens": TOKENS} | body
        with self._client.stream("POST", route, json=asked) as response:
            if response.status_code != 200:
                raise LostStream(f"{response.status_code} {said(response.read())}")
            for line in response.iter_lines():
                now = time.monotonic()
                if now - began > DEADLINE_S:
                    raise LostStream(f"not complete after {DEADLINE_S:.0f} s")
                if line == "data: [DONE]":
                    complete = True
                elif line.startswith("data: "):
                    pause_s, latest = max(pause_s, now - latest), now
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        raise LostStream(f"an error in the stream: {event['error']}")
                    answer = joined(answer, event["choices"])
        if not complete:
            raise LostStream("the stream ended before its [DONE]")
        return answer, pause_s


def said(body: bytes) -> str:
    """An error's message, or the beginning of a body that has none."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:300]


def joined(whole: Any, part: Any, name: str = "") -> Any:
    """An answer's choices and the next event's, put together: where one ends and the next begins is a matter of time.

    Choices and tool calls are told apart by their `index`; a tool call's id is drawn anew for each answer.
    """
    if part is None:
        return whole
    if isinstance(part, dict):
        return (whole or {}) | {
            each: joined((whole or {}).get(each), part[each], each) for each in part if each != "id"
        }
    if isinstance(part, list) and part and isinstance(part[0], dict) and "index" in part[0]:
        by_index = {each["index"]: each for each in whole or ()}
        for each in part:
            by_index[each["index"]] = joined(by_index.get(each["index"]), each)
        return [by_index[index] for index in sorted(by_index)]
    if isinstance(part, list):
        return [*(whole or ()), *part]
    return (whole or "") + part if name in GROWING else part


def alike(answer: Any, expected: Any) -> bool:
    """Equal, but for the last digits of log probabilities."""
    if isinstance(answer, dict) and isinstance(expected, dict):
        return answer.keys() == expected.keys() and all(alike(answer[name], expected[name]) for name in answer)
    if isinstance(answer, list) and isinstance(expected, list):
        return len(answer) == len(expected) and all(map(alike, answer, expected))
    if isinstance(answer, float) and isinstance(expected, float):
        return abs(answer - expected) <= DIGITS
    return bool(answer == expected)
