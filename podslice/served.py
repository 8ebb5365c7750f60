"""Parses what `podslice serve` is to serve: the demo, a model given by its fields, or a whole config."""

import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kuberay import Refusal
from kuberay.render.ray.serve_config import SERVE_PORT, serve_config
from podslice.arguments import given
from ray_configs.cell import CellConfig
from ray_configs.llm import LLMConfig
from ray_configs.loading import explained, load
from ray_configs.service import Service
from ray_configs.stable_diffusion import StableDiffusionConfig

ANY = "0.0.0.0"
NAMED = re.compile(r"[a-z][a-z0-9_-]*")
"""Names of keys, written NAME=KEY."""
AppConfig = LLMConfig | StableDiffusionConfig | CellConfig
KINDS: dict[str, type[LLMConfig] | type[StableDiffusionConfig]] = {"llm": LLMConfig, "images": StableDiffusionConfig}


@dataclass(frozen=True)
class Served:
    """One application of a Serve instance."""

    name: str
    config: AppConfig
    route_prefix: str
    host: str = "127.0.0.1"
    """Address that Serve listens on."""

    @property
    def title(self) -> str:
        """The model's name, or the cell's path."""
        if isinstance(self.config, CellConfig):
            return f"/sax/{self.config.name}"
        return self.config.served_name

    def url(self, port: int) -> str:
        near = self.host in ("127.0.0.1", "localhost", "::1", ANY, "::")
        host = "localhost" if near else f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{port}{self.route_prefix.rstrip('/')}"

    def first_command(self, port: int) -> str:
        """A curl command to try the application with."""
        url = self.url(port).removeprefix("http://")
        key = f" -H 'Authorization: Bearer {shown}'" if (shown := self._key()) else ""
        if isinstance(self.config, StableDiffusionConfig):
            return f"curl{key} -o picture.png '{url}/imagine?prompt=a+red+circle'"
        if isinstance(self.config, CellConfig):
            return f"curl{key} {url}/listall"
        body = '{"prompt": "How many days are in a week?", "max_tokens": 50}'
        return f"curl{key} {url}/generate -d '{body}'"

    def _key(self) -> str | None:
        """A key that the application takes, for a command to copy; a placeholder where others may read the output."""
        keys = [key.get_secret_value() for key in self.config.api_keys]
        keys += [key for key in os.environ.get("PODSLICE_API_KEYS", "").split(",") if key.strip()]
        if not keys:
            return None
        name, equals, secret = keys[0].strip().partition("=")
        plain = secret if equals and NAMED.fullmatch(name) else keys[0].strip()
        return plain if sys.stdout.isatty() and "'" not in plain else "YOUR_KEY"


@dataclass(frozen=True)
class Serving:
    """A Serve instance: its applications, and its HTTP and logging options."""

    applications: tuple[Served, ...]
    http: dict[str, Any]
    """Serve's HTTPOptions."""
    logging: dict[str, Any] | None = None
    """Serve's LoggingConfig; None for Serve's default."""

    @property
    def port(self) -> int:
        return int(self.http["port"])


def read(kind: str, arguments: Sequence[str], port: int | None) -> Serving:
    """Parses a command's arguments: nothing, FIELD=VALUE ..., --field VALUE ..., a model, or one CONFIG.

    Args:
        kind: a key of KINDS: the config that FIELD=VALUE arguments belong to.
        port: None for the config's port, or 8000 without a config.

    Raises:
        Refusal, ConfigError: an argument is invalid, or arguments conflict.
    """
    told = given(arguments, KINDS[kind])
    where = {"host": told.host} if told.host else {}
    if told.config is None:
        try:
            # Without fields: the demo. For a language model, that is the default of every field.
            demo = kind == "images" and not told.fields
            config = StableDiffusionConfig.demo() if demo else KINDS[kind](**told.fields)
        except ValidationError as error:
            raise Refusal(f"this cannot be served:\n{explained(error)}") from error
        http = {"host": "127.0.0.1", "port": port or SERVE_PORT} | where
        return Serving((Served("default", config, "/", told.host or "127.0.0.1"),), http)
    service = load(told.config)
    if not isinstance(service, Service):
        raise Refusal(f"{told.config} is a job; only a service can be served")
    whole = serve_config(service)
    return Serving(
        tuple(Served(app.serve_name, app.config, app.route_prefix, told.host or ANY) for app in service.applications),
        whole["http_options"] | ({"port": port} if port else {}) | where,
        whole["logging_config"],
    )


def joins_a_cluster() -> bool:
    """Whether `ray.init` will join a cluster: the one in RAY_ADDRESS, or one that `ray start` started here, whose
    address is in Ray's temporary folder (`ray._common.utils.get_ray_address_file`)."""
    if address := os.environ.get("RAY_ADDRESS"):
        return address != "local"
    folder = os.environ.get("RAY_TMPDIR") or os.environ.get("TMPDIR") or "/tmp"
    return Path(folder, "ray", "ray_current_cluster").exists()
