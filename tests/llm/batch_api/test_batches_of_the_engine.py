"""Batches to the real engine: every endpoint of the server's own application, then over Serve with a killed replica."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import openai
import pytest

from apps.llm.http.app import http_app
from apps.serving.ingress.api_keys import principals
from tests.http_servers import served
from tests.llm.batch_api.serving import answers, begin, client_of, ended, kept_in, until
from tests.llm.serve.serving import MODEL, SMALL, LocalServer, serve_cli, wait_until

CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}


@pytest.fixture
def server(crowded_server: LocalServer) -> LocalServer:
    return crowded_server


def requests(url: str, *bodies: dict[str, Any]) -> bytes:
    wanted = ({"custom_id": str(i), "method": "POST", "url": url, "body": body} for i, body in enumerate(bodies))
    return b"".join(json.dumps(request).encode() + b"\n" for request in wanted)


@pytest.mark.slow
def test_each_endpoint_answers_as_it_does_itself(server: Any, tmp_path: Path) -> None:
    app = http_app(server.model, principals(["night=key"]), batches=kept_in(tmp_path))
    chat = CHAT | {"temperature": 0, "seed": 1, "model": MODEL}
    tools = {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "tool_choice": "none"}
    with served(app, lifespan="on") as url, client_of(url, "key") as client:
        batches = {
            url: begin(client, requests(url, *bodies), url)
            for url, *bodies in (
                ("/v1/chat/completions", chat, chat | {"n": 2}, chat | {"temperature": -1}, chat | tools),
                ("/v1/completions", {"prompt": ["a", "b"], "max_tokens": 2}, {"prompt": 7}),
                ("/v1/embeddings", {"input": "a"}, {"input": ["a"] * 300}),
                ("/v1/rerank", {"query": "a", "documents": ["b", "c"]}),
                ("/v1/responses", {"input": "a", "max_output_tokens": 16}),
            )
        }
        done = {url: ended(client, batch) for url, batch in batches.items()}
        assert {batch.status for batch in done.values()} == {"completed"}
        counts = {url: (batch.request_counts.completed, batch.request_counts.failed) for url, batch in done.items()}
        assert counts["/v1/completions"] == (1, 1) and counts["/v1/embeddings"] == (2, 0)
        assert counts["/v1/rerank"] == counts["/v1/responses"] == (1, 0)
        good = answers(client, done["/v1/chat/completions"].output_file_id)
        online = client.chat.completions.create(**chat)
        first = good[0]["response"]["body"]
        assert first["choices"][0]["message"]["content"] == online.choices[0].message.content
        assert first["usage"]["completion_tokens"] == 4 and len(good[1]["response"]["body"]["choices"]) == 2
        bad = answers(client, done["/v1/chat/completions"].error_file_id)
        assert bad[0]["custom_id"] == "2" and bad[0]["response"]["body"]["error"]["param"] == "temperature"
        bad = answers(client, done["/v1/completions"].error_file_id)
        assert "prompt must be a string" in bad[0]["response"]["body"]["error"]["message"]


@pytest.mark.slow
def test_clients_come_first(server: Any, tmp_path: Path) -> None:
    app = http_app(server.model, batches=kept_in(tmp_path))
    endless = {"prompt": "x", "max_tokens": 900, "ignore_eos": True, "n": 2}
    before = server.engine.stats().preemptions
    with served(app, lifespan="on") as url, client_of(url) as client:
        batch = begin(client, requests("/v1/completions", *[endless] * 60))
        wait_until(lambda: server.engine.stats().waiting >= 2, 60)

        def asked() -> bool:
            client.completions.create(model=MODEL, prompt="now", max_tokens=3)  # accepted although the queue is full
            return server.engine.stats().preemptions > before

        wait_until(asked, 60)
        now = client.batches.retrieve(batch.id)
        assert now.status == "in_progress" and now.request_counts.completed < 60, "they did not wait for the batch"
        client.batches.cancel(batch.id)
        assert ended(client, batch).status == "cancelled"
    wait_until(lambda: server.engine.stats().running == 0, 60)
    assert server.engine.stats().pages_used == 0


@pytest.mark.slow
@pytest.mark.timeout(900)  # two replicas start, beside whatever else the machine does
def test_a_killed_replica_goes_on_where_it_was(ray_cluster: str, serve_url: str, tmp_path: Path) -> None:
    import ray

    state = tmp_path / "state"
    options = [f"{name}={value}" for name, value in (SMALL | {"batches": str(state)}).items()]
    arguments = ("--name", "batches", "--route-prefix", "/batches", "apps.llm:build", *options)
    done = serve_cli("run", "--non-blocking", "--address", ray_cluster, *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    lines, tokens = 40, 300  # far more than the engine answers between two polls

    def replica() -> int | None:
        """The replica's process id."""
        actors = ray.util.list_named_actors(all_namespaces=True)
        names = [actor["name"] for actor in actors if actor["name"].startswith("SERVE_REPLICA::batches#")]
        if len(names) != 1:
            return None
        actor = ray.get_actor(names[0], namespace="serve")
        return ray.get(actor.__ray_call__.remote(lambda _: os.getpid()), timeout=60)

    def patiently(ask: Any) -> Any:
        """Retries while there is no replica and Serve itself answers."""
        try:
            return ask()
        except openai.APIStatusError as error:
            assert error.status_code in (404, 500, 502, 503), error
        except openai.APIConnectionError:
            pass
        return None

    try:
        with client_of(f"{serve_url}/batches") as client:
            bodies = [CHAT | {"max_tokens": tokens, "ignore_eos": True, "temperature": 1.0}] * lines
            batch = begin(client, requests("/v1/chat/completions", *bodies), "/v1/chat/completions")
            until(client, batch, lambda now: 5 <= now.request_counts.completed < lines, 240)
            killed = replica()
            assert killed is not None
            os.kill(killed, signal.SIGKILL)
            folder = state / "keys/default/batches" / batch.id
            saved = {line for part in folder.glob("part-*.jsonl") for line in part.read_bytes().splitlines()[1:]}
            assert 5 <= len(saved) < lines
            wait_until(lambda: patiently(lambda: ended_now(client, batch)), 600)
            done = client.batches.retrieve(batch.id)
            assert done.status == "completed" and done.request_counts.completed == lines
            assert replica() not in (None, killed)
            output = client.files.content(done.output_file_id).content.splitlines()
    finally:
        from ray import serve

        serve.delete("batches")
    assert saved < set(output), "saved answers are unchanged and not computed again"
    assert [json.loads(line)["custom_id"] for line in output] == [str(i) for i in range(lines)]


def ended_now(client: openai.OpenAI, batch: Any) -> bool:
    return client.batches.retrieve(batch.id).status in ("completed", "failed", "expired", "cancelled")
