"""JetStream's HTTP API: the tutorial's own command, and each reply byte for byte."""

import json
import subprocess

import httpx

TUTORIAL = """curl --request POST \\
--header "Content-type: application/json" \\
-s \\
localhost:8000/generate \\
--data \\
'{
    "prompt": "What are the top 5 programming languages",
    "max_tokens": 200
}'
"""


def test_the_tutorials_curl(llm_url):
    command = TUTORIAL.replace("localhost:8000", llm_url)
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    reply = json.loads(done.stdout)
    assert list(reply) == ["response"] and reply["response"]
    assert done.stdout == json.dumps(reply, indent=4)


def test_every_field_has_its_default(llm_url):
    empty = httpx.post(f"{llm_url}/generate", content=b"")
    assert empty.status_code == 200 and isinstance(empty.json()["response"], str)
    asked = {"server": "127.0.0.1", "port": "9000", "session_cache": "", "priority": 0, "max_tokens": 100}
    named = httpx.post(f"{llm_url}/generate", json={"prompt": "This is an example prompt", "stream": False} | asked)
    assert named.json() == empty.json()  # greedy: the same again


def test_a_stream_is_json_objects_one_after_the_other(llm_url):
    body = {"prompt": "ha" * 30, "max_tokens": 200}  # long, because a short answer may arrive all at once
    whole = httpx.post(f"{llm_url}/generate", json=body).json()["response"]
    reply = httpx.post(f"{llm_url}/generate", json=body | {"stream": True})
    assert reply.headers["content-type"].startswith("application/json")
    decoder, rest, parts = json.JSONDecoder(), reply.text, []
    while rest:
        part, end = decoder.raw_decode(rest)
        parts.append(part)
        rest = rest[end:]
    assert "".join(part["text"] for part in parts) == whole and len(parts) > 1
    assert {part["id"] for part in parts} == {parts[0]["id"]} and parts[0]["id"].startswith("generate-")
    assert all(isinstance(part["time_created"], float) for part in parts)


def test_probes(llm_url):
    assert httpx.get(f"{llm_url}/").json() == {"message": "HTTP Server for JetStream"}
    assert httpx.get(f"{llm_url}/healthcheck").json() == {"response": {"is_live": True}}


def test_an_answer_ends_with_the_context_and_a_bad_body_is_refused(llm_url):
    assert httpx.post(f"{llm_url}/generate", json={"max_tokens": 100000}).status_code == 200
    bad = httpx.post(f"{llm_url}/generate", json={"max_tokens": "many"})
    assert bad.status_code == 422 and bad.json()["detail"][0]["loc"] == ["body", "max_tokens"]
    assert httpx.post(f"{llm_url}/generate", content=b"{bad").status_code == 422
    long = httpx.post(f"{llm_url}/generate", json={"prompt": "x " * 3000})
    assert long.status_code == 400 and "1024" in long.json()["detail"]
