"""`podslice serve` with a model that takes its time: numbered pieces, ten a second, without JAX.

    python -m tests.podslice.slow_server PORT [DRAIN_TIMEOUT_S]

What is served, supervised and shut down is the product's; only the model is not.
"""

import asyncio
import sys
from collections.abc import AsyncIterator
from typing import Any

from fastapi import FastAPI
from ray import serve
from starlette.responses import Response, StreamingResponse

import podslice.server
from apps.serving.ingress.api_keys import Principals
from apps.serving.ingress.application import answer_errors, models_router
from apps.serving.ingress.direct_ingress import prefer_direct_ingress
from apps.serving.replica import EngineServer, bound
from apps.serving.shutdown import finish_requests_first
from podslice.served import read
from podslice.supervisor import ServerFailed, Supervisor
from ray_configs.llm import LLMConfig

PIECE_S = 0.1


def pieces(count: int, size: int = 0) -> bytes:
    """The whole answer of `count` pieces, each followed by `size` bytes."""
    return b"".join(_piece(i, size) for i in range(count)) + b"data: [DONE]\n\n"


def _piece(i: int, size: int) -> bytes:
    return b"data: %d%s\n\n" % (i, b"." * size)


class SlowModel:
    name = "slow"

    def cards(self) -> list[dict[str, Any]]:
        return [{"id": self.name}]

    def report(self) -> dict[str, Any]:
        return {}

    def check(self) -> None:
        pass

    async def report_forever(self) -> None:
        pass

    def shutdown(self) -> None:
        pass


@serve.deployment
@serve.ingress()
class SlowServer(EngineServer):
    def load(self, config: Any) -> SlowModel:
        return SlowModel()

    def http_app(self, model: Any, keys: Principals) -> FastAPI:
        app = FastAPI()
        app.include_router(models_router(model))

        @app.get("/stream/{count}")
        async def stream(count: int, size: int = 0) -> Response:
            async def answer() -> AsyncIterator[bytes]:
                for i in range(count):
                    await asyncio.sleep(PIECE_S if not size else 0)
                    yield _piece(i, size)
                yield b"data: [DONE]\n\n"

            return StreamingResponse(answer(), media_type="text/event-stream")

        @app.get("/whole/{count}")
        async def whole(count: int) -> Response:
            await asyncio.sleep(count * PIECE_S)
            return Response(pieces(count))

        answer_errors(app, keys)
        return app


def build(_: dict[str, str]) -> serve.Application:
    """For `serve run tests.podslice.slow_server:build`; asks for what `apps.llm:build` asks for."""
    prefer_direct_ingress()
    finish_requests_first()
    return bound(SlowServer, LLMConfig())


def main(port: int, *fields: str) -> int:
    command = [sys.executable, "-c", "import sys; from tests.podslice.slow_server import server; server()"]
    try:
        return Supervisor(read("llm", fields, port)).run([*command, "llm", str(port), *fields])
    except ServerFailed as failure:
        print(f"podslice: {failure}", file=sys.stderr)
        return 1


def server() -> None:
    """The process that the supervisor supervises."""
    podslice.server._application = lambda config: bound(SlowServer, config)
    podslice.server.main(*sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), *sys.argv[2:]))
