"""Requests without pause against a service, and how each of them ended."""

import threading
import time
from dataclasses import dataclass

import httpx

PROMPT = "How many days are in a week?"


@dataclass(frozen=True)
class Ending:
    """How one request ended: `ok`; `refused`, by 503 with Retry-After; `event`, an error in its stream; or else."""

    began: float
    ended: float
    kind: str
    said: str = ""


def ask(url: str, stream: bool, max_tokens: int = 24) -> Ending:
    began = time.monotonic()
    kind, said = "ok", ""
    body = {"prompt": PROMPT, "max_tokens": max_tokens, "ignore_eos": True, "temperature": 0, "stream": stream}
    try:
        with httpx.stream("POST", f"{url}/v1/completions", json=body, timeout=60) as reply:
            text = reply.read().decode()
        if reply.status_code == 503 and int(reply.headers.get("retry-after", 0)) >= 1:
            kind, said = "refused", text
        elif reply.status_code != 200:
            kind, said = f"status {reply.status_code}", text
        elif stream and '"error"' in text:
            kind, said = "event", text[-400:]
        elif stream and not text.endswith("data: [DONE]\n\n"):
            kind, said = "cut short", text[-400:]
        elif not stream and reply.json()["usage"]["completion_tokens"] != max_tokens:
            kind, said = "short", text
    except httpx.HTTPError as error:
        kind, said = type(error).__name__, str(error)
    return Ending(began, time.monotonic(), kind, said)


class Load:
    """Clients that ask one request after the other, every second one streamed, until `stop`."""

    def __init__(self, url: str, clients: int = 6):
        self.endings: list[Ending] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._client, args=(url, i % 2 == 0)) for i in range(clients)]
        for thread in self._threads:
            thread.start()

    def _client(self, url: str, stream: bool) -> None:
        while not self._stop.is_set():
            ending = ask(url, stream)
            self.endings.append(ending)
            if ending.kind != "ok":
                time.sleep(0.2)  # a client that heeds Retry-After would sleep longer

    def stop(self) -> list[Ending]:
        self._stop.set()
        for thread in self._threads:
            thread.join()
        return self.endings


def longest_silence(endings: list[Ending], began: float, ended: float) -> float:
    """Seconds without a single good answer."""
    times = sorted(e.ended for e in endings if e.kind == "ok" and began <= e.ended <= ended)
    return max(after - before for before, after in zip([began, *times], [*times, ended]))
