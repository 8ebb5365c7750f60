"""Requests to a language model's Service, counted by how they ended. Each comes on a connection of its own."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import pairwise
from types import TracebackType

import httpx

TIMEOUT_S = 120
AT_ONCE = 8
Ask = Callable[[], str]
"""One request. How it ended: its status code, the kind of error, or `cut` for a stream without an end."""


@dataclass(frozen=True)
class Model:
    """A served model, and who asks."""

    url: str
    name: str
    key: str | None = None

    def complete(self, max_tokens: int = 2, timeout_s: float = TIMEOUT_S) -> str:
        return _outcome(lambda: self._complete(max_tokens, timeout_s))

    def stream(
        self, max_tokens: int = 3, timeout_s: float = TIMEOUT_S, begun: Callable[[], None] = lambda: None
    ) -> str:
        """`begun` is called when the first words are there."""
        return _outcome(lambda: self._stream(max_tokens, timeout_s, begun))

    def _body(self, max_tokens: int, **more: object) -> dict[str, object]:
        prompt = "How many days are in a week?"
        # ignore_eos: a model with random weights may have nothing to say.
        asked = {"model": self.name, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
        return asked | more

    def _client(self, timeout_s: float) -> httpx.Client:
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        return httpx.Client(base_url=self.url, headers=headers, timeout=timeout_s)

    def _complete(self, max_tokens: int, timeout_s: float) -> str:
        with self._client(timeout_s) as client:
            answer = client.post("/v1/completions", json=self._body(max_tokens))
        if answer.status_code == 200 and answer.json()["usage"]["completion_tokens"] != max_tokens:
            return "short"
        return str(answer.status_code)

    def _stream(self, max_tokens: int, timeout_s: float, begun: Callable[[], None]) -> str:
        events = []
        with (
            self._client(timeout_s) as client,
            client.stream("POST", "/v1/completions", json=self._body(max_tokens, stream=True)) as answer,
        ):
            if answer.status_code != 200:
                return str(answer.status_code)
            for line in answer.iter_lines():
                if line.startswith("data: "):  # and no comment, such as what a stream waits for
                    events.append(line.removeprefix("data: "))
                if len(events) == 1:
                    begun()
        if events[-1:] != ["[DONE]"]:
            return "cut"
        ends = [choice.get("finish_reason") for event in events[:-1] for choice in json.loads(event).get("choices", ())]
        return "200" if "length" in ends else "short"


def _outcome(ask: Callable[[], str]) -> str:
    try:
        return ask()
    except httpx.RemoteProtocolError:
        return "cut"
    except httpx.HTTPError as error:
        return type(error).__name__


def count(requests: int, *asks: Ask, at_once: int = AT_ONCE) -> Counter[str]:
    """Ask so many times, by turns, and count how it ended."""
    with ThreadPoolExecutor(at_once) as pool:
        return Counter(pool.map(lambda number: asks[number % len(asks)](), range(requests)))


@dataclass
class Traffic:
    """Requests that go on while something happens.

    with Traffic(model.complete) as traffic:
        ...
    traffic.outcomes, traffic.silence_s
    """

    ask: Ask
    every_s: float = 0.5
    answered: list[float] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)

    def __enter__(self) -> "Traffic":
        self._over = threading.Event()
        self._began = time.monotonic()
        self._threads = [threading.Thread(target=self._go_on) for _ in range(2)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        self._ended = time.monotonic()

    @property
    def silence_s(self) -> float:
        """The longest time without an answer."""
        times = [self._began, *sorted(self.answered), self._ended]
        return max(later - earlier for earlier, later in pairwise(times))

    def __str__(self) -> str:
        ended = ", ".join(f"{times} x {what}" for what, times in self.outcomes.most_common())
        return f"{ended} in {self._ended - self._began:.0f} s; the longest silence was {self.silence_s:.0f} s"

    def _go_on(self) -> None:
        while not self._over.wait(self.every_s):
            outcome = self.ask()
            self.outcomes[outcome] += 1
            if outcome == "200":
                self.answered.append(time.monotonic())
