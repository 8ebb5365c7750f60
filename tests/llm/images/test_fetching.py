"""Images by URL: only from the hosts of the config, at public addresses, also behind redirections.

Refused are this machine, private and link-local networks, the metadata server, multicast, and other ways to write them.
"""

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from apps.llm.api import RequestError
from apps.llm.text.images import fetching
from apps.llm.text.images.fetching import fetched, is_public
from ray_configs.llm import EngineConfig
from tests.http_servers import StandInHandler, StandInServer

LEADS = {
    "/there": "/image",
    "/round": "/round",
    "/inside": "http://169.254.169.254/computeMetadata/v1/",
    "/file": "file:///etc/passwd",
}


class Images(StandInHandler):
    def do_GET(self) -> None:
        if self.path in LEADS:
            self.answer("", 302, headers={"location": LEADS[self.path]})
        elif self.path == "/image":
            self.answer(f"image for {self.headers['host']}")
        elif self.path == "/long":
            self.answer("x" * 5000)
        else:
            self.answer("no", 404)


@pytest.fixture
def host(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A server by a name; its address counts as public."""
    with StandInServer(Images) as server:
        port = int(server.url.rsplit(":", 1)[1])
        resolve = socket.getaddrinfo

        def resolved(name: str, *arguments: Any, **named: Any) -> Any:
            return resolve("127.0.0.1" if name == "images.test" else name, *arguments, **named)

        monkeypatch.setattr(socket, "getaddrinfo", resolved)
        monkeypatch.setattr(fetching, "is_public", lambda address: address == "127.0.0.1" or is_public(address))
        yield f"images.test:{port}"


def test_an_allowed_host(host: str) -> None:
    assert fetched(f"http://{host}/image", [host], "f") == f"image for {host}".encode()
    assert fetched(f"http://{host}/there", [host], "f") == f"image for {host}".encode()


@pytest.mark.parametrize(
    "path, said",
    [
        ("/none", "answers 404"),
        ("/round", "redirects more than 3 times"),
        ("/inside", "alone, not '169.254.169.254'"),
        ("/file", "alone, not ''"),
        ("/long", "more than 0 MiB"),
    ],
)
def test_what_an_allowed_host_may_not_do(host: str, path: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetching, "MOST_BYTES", 1000)
    with pytest.raises(RequestError, match=said) as refused:
        fetched(f"http://{host}{path}", [host], "messages[0]")
    assert refused.value.field == "messages[0]"


@pytest.mark.parametrize(
    "url",
    [
        "http://other.test/a",
        "http://images.test:1/a",
        "http://user@HOST/a",
        "ftp://HOST/a",
        "http://images.test.evil/a",
    ],
)
def test_other_hosts(host: str, url: str) -> None:
    with pytest.raises(RequestError, match="images are fetched from"):
        fetched(url.replace("HOST", host), [host], "f")


ADDRESSES = (
    *("127.0.0.1", "127.1.2.3", "10.0.0.1", "172.16.5.4", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0"),
    *(
        "224.0.0.1",
        "::1",
        "fe80::1",
        "fd00:ec2::254",
        "::ffff:127.0.0.1",
        "::ffff:10.0.0.1",
        "2002:7f00:1::",
        "ff02::1",
    ),
)


@pytest.mark.parametrize("address", ADDRESSES)
def test_addresses_that_are_not_public(address: str) -> None:
    assert not is_public(address)


def test_public_addresses() -> None:
    assert is_public("8.8.8.8") and is_public("2001:4860:4860::8888")


def test_a_name_of_this_network_is_refused() -> None:
    """Though the config names it: a name's owner can lead it anywhere."""
    with pytest.raises(RequestError, match=r"its address (127.0.0.1|::1) is not public"):
        fetched("http://localhost:1/a", ["localhost:1"], "f")


def test_the_address_that_was_looked_at_is_connected_to(host: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that resolves to another address at each question (DNS rebinding)."""
    asked = []
    resolve = socket.getaddrinfo

    def rebinding(name: str, *arguments: Any, **named: Any) -> Any:
        asked.append(name)
        return resolve(name, *arguments, **named)

    monkeypatch.setattr(socket, "getaddrinfo", rebinding)
    fetched(f"http://{host}/image", [host], "f")
    assert asked.count("images.test") == 1


def test_the_config() -> None:
    sees = {"image_tokens": 2048, "image_hosts": "a.example, b.example:8443"}
    assert EngineConfig(**sees).image_hosts == ("a.example", "b.example:8443")
    for wrong in ("https://a.example", "a.example/images", "*"):
        with pytest.raises(ValueError, match="must be a host's name in small letters"):
            EngineConfig(image_tokens=2048, image_hosts=wrong)
    with pytest.raises(ValueError, match="image_hosts is for a model that takes images"):
        EngineConfig(image_hosts="a.example")
    with pytest.raises(ValueError, match="must be at least max_image_tokens"):
        EngineConfig(image_tokens=512)
