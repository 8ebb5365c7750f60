"""Fetches images from the hosts that a config allows, and from no other place that a client could lead to."""

import ipaddress
import socket
import time
from collections.abc import Collection

import httpx

from apps.llm.api import RequestError
from apps.llm.text.images.opening import MOST_BYTES

MOST_S = 5.0
"""For all of a fetch, its redirections included."""
MOST_REDIRECTIONS = 3


def fetched(url: str, hosts: Collection[str], field: str) -> bytes:
    """What is at an http(s) URL.

    A name is resolved once, and what is connected to is what was looked at: another answer a moment later changes
    nothing. Each redirection is held to the same rules.

    Args:
        hosts: whose URLs are fetched: names, with a port where it is not the scheme's own.

    Raises:
        RequestError: names `field`: the host is not among them, its address is not public, or the fetch failed.
    """
    ends = time.monotonic() + MOST_S
    with httpx.Client(trust_env=False, follow_redirects=False) as client:
        for _ in range(1 + MOST_REDIRECTIONS):
            found = _one(client, url, hosts, field, ends)
            if isinstance(found, bytes):
                return found
            url = found
    raise RequestError(field, f"{field}: the image's host redirects more than {MOST_REDIRECTIONS} times")


def _one(client: httpx.Client, url: str, hosts: Collection[str], field: str, ends: float) -> bytes | str:
    """The content, or where it is instead."""
    try:
        target = httpx.URL(url)
    except (httpx.InvalidURL, ValueError) as error:
        raise RequestError(field, f"{field}: not a URL: {error}") from error
    name = target.host if target.port is None else f"{target.host}:{target.port}"
    if target.scheme not in ("http", "https") or name not in hosts or target.userinfo:
        raise RequestError(field, f"{field}: images are fetched from {', '.join(sorted(hosts))} alone, not {name!r}")
    try:
        address = _public(target.host, target.port or (443 if target.scheme == "https" else 80))
        request = client.build_request(
            "GET",
            target.copy_with(host=address),
            headers={"host": name, "accept": "image/*", "accept-encoding": "identity"},
            timeout=max(0.1, ends - time.monotonic()),
            extensions={"sni_hostname": target.host},  # whose certificate is asked for, and checked
        )
        response = client.send(request, stream=True)
        try:
            if response.is_redirect:
                return str(target.join(response.headers["location"]))
            if not response.is_success:
                raise RequestError(field, f"{field}: the image's host answers {response.status_code}")
            return _content(response, field, ends)
        finally:
            response.close()
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        raise RequestError(field, f"{field}: the image can't be fetched from {name}: {error}") from error


def _content(response: httpx.Response, field: str, ends: float) -> bytes:
    content = bytearray()
    for piece in response.iter_bytes():
        content += piece
        if len(content) > MOST_BYTES:
            raise RequestError(field, f"{field}: the image has more than {MOST_BYTES >> 20} MiB")
        if time.monotonic() > ends:
            raise RequestError(field, f"{field}: the image takes longer than {MOST_S:g} s to fetch")
    return bytes(content)


def _public(host: str, port: int) -> str:
    """An address of the host. Raises OSError if it has none, or one that is not public: of this network, say."""
    addresses = [str(found[4][0]) for found in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)]
    for address in addresses:
        if not is_public(address):
            raise OSError(f"its address {address} is not public")
    return addresses[0]


def is_public(address: str) -> bool:
    """Whether an address is one of the internet's, also where it wraps one of the fourth version."""
    parsed = ipaddress.ip_address(address)
    inner = getattr(parsed, "ipv4_mapped", None) or getattr(parsed, "sixtofour", None)
    return parsed.is_global and not parsed.is_multicast and (inner is None or inner.is_global)
