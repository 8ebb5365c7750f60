"""Events of the prefix cache, for routers that follow it."""

from typing import Annotated

from pydantic import Field, field_validator

from ray_configs.base import Config, from_text


class KVEvents(Config):
    """Publishes what each DP rank's prefix cache stores and forgets over ZeroMQ, with the fields of vLLM's
    `--kv-events-config`. Dynamo's indexer follows it.

    The events hold the token ids of prompts and answers, and ZeroMQ asks nobody for a key: let only routers reach the
    ports.
    """

    endpoint: str = "tcp://*:5557"
    """Where the PUB socket listens. DP rank n has the port n above it."""
    replay_endpoint: str | None = None
    """Where the socket listens that sends missed events again, such as `tcp://*:6557`. None: there is none."""
    topic: str = ""
    """Of each message."""
    buffer_steps: int = Field(10_000, ge=1)
    """Batches of events that are kept to be sent again."""
    hwm: int = Field(100_000, ge=1)
    """Messages that wait for a slow subscriber; it loses more, and may ask for them again."""

    @field_validator("endpoint", "replay_endpoint")
    @classmethod
    def _has_a_port(cls, value: str | None) -> str | None:
        if value is not None and not (value.startswith("tcp://") and value.rpartition(":")[2].isdecimal()):
            raise ValueError(f"must be tcp://ADDRESS:PORT, such as tcp://*:5557, not {value}")
        return value

    @staticmethod
    def of_rank(endpoint: str, rank: int) -> str:
        address, _, port = endpoint.rpartition(":")
        return f"{address}:{int(port) + rank}"


PublishedEvents = Annotated[KVEvents | None, from_text('{"endpoint": "tcp://*:5557"}')]
