"""Ctrl-C of one server with a language model, pictures and a cell, each in the middle of its answers.

The oracle is the same answer, undisturbed, but for what tells it from another like it: ids and times.
"""

import base64
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import Any

import httpx
import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from PIL import Image

from apps.cell.desired.store import Store
from tests.podslice.test_draining import ATTEMPTS, SLOW_RAY
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
# In float32, an answer in company is the answer alone: bfloat16 rounds by the number of rows where a CPU has AMX.
SERVICE = """
from ray_configs.cell import CellConfig
from ray_configs.llm import LLMConfig
from ray_configs.service import Application, Service
from ray_configs.stable_diffusion import StableDiffusionConfig
service = Service(name="all", applications=(
    Application(image="all", config=LLMConfig(
        model_id="demo", dtype="float32", max_batch_size=8, max_step_tokens=64, batches="{folder}/batches"
    )),
    Application(image="all", config=StableDiffusionConfig.demo(), route_prefix="/pictures"),
    Application(image="all", config=CellConfig(name="test", state_uri="{folder}/cell"), route_prefix="/cell"),
))
"""
PUBLISHED = {
    "model": "/sax/test/published",
    "model_path": "catalog.local",
    "replicas": 1,
    "overrides": {"max_batch_size": 4, "max_step_tokens": 64, "dtype": "float32"},
}
LONG = {"temperature": 0, "stream": True, "ignore_eos": True}
TURNS = [{"role": "user", "content": "Once"}]
PICTURE = {"prompt": "a red circle", "seed": 7, "steps": 50}
ASKED: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "Once", "max_tokens": 900, **LONG}),
    ("/v1/chat/completions", {"messages": TURNS, "max_tokens": 900, **LONG}),
    ("/v1/messages", {"model": "demo", "messages": TURNS, "max_tokens": 900, **LONG}),
    ("/v1/responses", {"input": "Once", "max_output_tokens": 900, **LONG}),
    ("/v1/completions", {"prompt": "Once", "max_tokens": 900, **LONG, "stream": False}),
    ("/generate", {"prompt": "Once", "max_tokens": 500}),
    ("/cell/v1/completions", {"model": "published", "prompt": "Once", "max_tokens": 900, **LONG}),
    ("/cell/generate", {"model": "/sax/test/published", "query": "Once", "extra_inputs": {"temperature": 0}}),
    ("/pictures/imagine", {"prompt": "a red circle", "seed": 7, "num_inference_steps": 50}),
    ("/pictures/sdapi/v1/txt2img", PICTURE),
]
OWN = re.compile(
    rb'"[a-z]{2,8}[-_][0-9a-f]{16,}"|"(created|created_at|completed_at)": ?[\d.]+|job_timestamp\\": \\"\d+'
)
"""Ids and times."""


def ask(url: str, path: str, body: dict[str, Any], begun: Barrier | None = None) -> tuple[int, Any]:
    method = ("GET", {"params": body}) if path.endswith(("/imagine", "/watch")) else ("POST", {"json": body})
    with httpx.Client(timeout=400) as client:
        request = client.build_request(method[0], url + path, **method[1])
        if begun is not None:
            begun.wait(120)
        answer = client.send(request, stream=True)
        return answer.status_code, said(answer.read())


def said(body: bytes) -> Any:
    """An answer without its own ids and times; of a stream, the text and the usage, however it was cut into events."""
    own = OWN.sub(lambda found: b'"at":0' if found[1] else b'""', body)
    if not own.startswith((b"data:", b"event:")):
        return own
    lines = [line.removeprefix(b"data: ") for line in own.splitlines() if line.startswith(b"data: {")]
    events = [json.loads(line) for line in lines]
    usages = [usage for event in events for usage in found_in(event, "usage") if usage]
    return "".join(text for event in events for text in found_in(event, "text", "content", "delta")), usages[-1:]


def pixels(body: bytes) -> NDArray[Any]:
    """Of the picture that a body is or has, as numbers from 0 to 255."""
    if found := re.search(rb'"images": ?\["([^"]+)"', body):
        body = base64.b64decode(found[1])
    return np.asarray(Image.open(io.BytesIO(body)), np.int16)


def found_in(event: Any, *names: str) -> Iterator[Any]:
    """Texts, or usages, under these names at any depth."""
    if isinstance(event, list):
        for part in event:
            yield from found_in(part, *names)
    elif isinstance(event, dict):
        for name, value in event.items():
            if name in names and (isinstance(value, str) or name == "usage"):
                yield value
            elif isinstance(value, dict | list):
                yield from found_in(value, *names)


def batch(url: str) -> str:
    """Starts a batch of many lines; its id."""
    line = {"method": "POST", "url": "/v1/completions", "body": {"prompt": "Once", "max_tokens": 300}}
    lines = "\n".join(json.dumps({"custom_id": str(i), **line}) for i in range(500))
    file = httpx.post(f"{url}/v1/files", files={"file": ("in.jsonl", lines)}, data={"purpose": "batch"}).json()
    body = {"input_file_id": file["id"], "endpoint": "/v1/completions", "completion_window": "24h"}
    return str(httpx.post(f"{url}/v1/batches", json=body).json()["id"])


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_all_that_is_open_ends_as_if_undisturbed(tmp_path: Path) -> None:
    config = tmp_path / "service.py"
    config.write_text(SERVICE.format(folder=tmp_path))
    for _ in range(ATTEMPTS):
        port = free_port()
        url = f"http://127.0.0.1:{port}"
        run = subprocess.Popen(
            [sys.executable, "-m", "podslice", "serve", "--port", str(port), str(config)],
            cwd=ROOT,
            env=os.environ | {"RAY_ADDRESS": "local", "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        if "answers" in run.stdout.readline():
            break
        assert SLOW_RAY in (said := run.communicate()[1]), said
    else:
        pytest.fail(f"Ray {SLOW_RAY} {ATTEMPTS} times")
    try:
        assert httpx.post(f"{url}/cell/publish", json=PUBLISHED).status_code == 200
        while httpx.get(f"{url}/cell/listcell", params={"model": PUBLISHED["model"]}).json()["state"] != "LOADED":
            time.sleep(1)
        undisturbed = [ask(url, path, body) for path, body in ASKED]
        assert {status for status, _ in undisturbed} == {200}, undisturbed
        working = batch(url)
        while not httpx.get(f"{url}/v1/batches/{working}").json()["request_counts"]["completed"]:
            time.sleep(0.2)

        processes, begun = psutil.Process(run.pid).children(recursive=True), Barrier(len(ASKED) + 1)
        with ThreadPoolExecutor(len(ASKED) + 1) as pool:
            answers = [pool.submit(ask, url, path, body, begun) for path, body in ASKED]
            begun.wait(120)
            watching = pool.submit(ask, url, "/cell/watch", {})
            time.sleep(0.5)
            run.send_signal(signal.SIGINT)
            ended = [answer.result() for answer in answers]
            assert watching.result()[0] == 200, "what has no end of its own ends too, without an error"
        run.communicate(timeout=180)
    finally:
        run.kill()
    for (path, _), before, after in zip(ASKED, undisturbed, ended):
        if path.startswith("/pictures"):
            assert (before[0], after[0]) == (200, 200), (path, after)
            # Two in one batch: a CPU may add in another order.
            np.testing.assert_allclose(pixels(after[1]), pixels(before[1]), atol=2)
        else:
            assert after == before, (path, before, after)
    assert run.returncode == 0 and not [process for process in processes if process.is_running()]
    state = Store(str(tmp_path / "cell"), "test").read().state
    assert list(state.models) == [PUBLISHED["model"]], "the next start serves what was published"
    left = {path.name for path in (tmp_path / "batches").rglob("*")}
    assert any(working in name for name in left), "the next start goes on with the batch"
