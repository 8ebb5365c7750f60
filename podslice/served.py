"""Parses what `podslice serve` is to serve: the demo, a model given by its fields, or a whole config."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kuberay import Refusal
from kuberay.render.ray.serve_config import SERVE_PORT, serve_config
from ray_configs.cell import CellConfig
from ray_configs.llm import LLMConfig
from ray_configs.loading import explained, load
from ray_configs.service import Service
from ray_configs.stable_diffusion import StableDiffusionConfig

AppConfig = LLMConfig | StableDiffusionConfig | CellConfig
KINDS: dict[str, type[LLMConfig] | type[StableDiffusionConfig]] = {"llm": LLMConfig, "images": StableDiffusionConfig}


@dataclass(frozen=True)
class Served:
    """One application of a Serve instance."""

    name: str
    config: AppConfig
    route_prefix: str

    @property
    def title(self) -> str:
        """The model's name, or the cell's path."""
        if isinstance(self.config, CellConfig):
            return f"/sax/{self.config.name}"
        return self.config.served_name

    def url(self, port: int) -> str:
        return f"http://localhost:{port}{self.route_prefix.rstrip('/')}"

    def first_command(self, port: int) -> str:
        """A curl command to try the application with."""
        url = self.url(port).removeprefix("http://")
        key = " -H 'Authorization: Bearer YOUR_KEY'" if self.config.api_keys else ""
        if isinstance(self.config, StableDiffusionConfig):
            return f"curl{key} -o picture.png '{url}/imagine?prompt=a+red+circle'"
        if isinstance(self.config, CellConfig):
            return f"curl{key} {url}/listall"
        body = '{"prompt": "How many days are in a week?", "max_tokens": 50}'
        return f"curl{key} {url}/generate -d '{body}'"


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
    """Parses a command's arguments: nothing, FIELD=VALUE ..., or one CONFIG.

    Args:
        kind: a key of KINDS: the config that FIELD=VALUE arguments belong to.
        port: None for the config's port, or 8000 without a config.

    Raises:
        Refusal, ConfigError: an argument is invalid, or arguments conflict.
    """
    configs = [argument for argument in arguments if "=" not in argument]
    if not configs:
        fields = dict(argument.split("=", 1) for argument in arguments)
        try:
            # Without fields: the demo. For a language model, that is the default of every field.
            config = StableDiffusionConfig.demo() if kind == "images" and not fields else KINDS[kind](**fields)
        except ValidationError as error:
            raise Refusal(f"this cannot be served:\n{explained(error)}") from error
        return Serving((Served("default", config, "/"),), {"host": "127.0.0.1", "port": port or SERVE_PORT})
    if len(arguments) > 1:
        raise Refusal(f"{configs[0]} is a complete config: leave out the other arguments")
    service = load(configs[0])
    if not isinstance(service, Service):
        raise Refusal(f"{configs[0]} is a job; only a service can be served")
    whole = serve_config(service)
    return Serving(
        tuple(Served(app.serve_name, app.config, app.route_prefix) for app in service.applications),
        whole["http_options"] | ({"port": port} if port else {}),
        whole["logging_config"],
    )


def joins_a_cluster() -> bool:
    """Whether `ray.init` will join a cluster: the one in RAY_ADDRESS, or one that `ray start` started here."""
    if address := os.environ.get("RAY_ADDRESS"):
        return address != "local"
    return Path("/tmp/ray/ray_current_cluster").exists()
