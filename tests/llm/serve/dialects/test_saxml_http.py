"""Saxml's HTTP API: the tutorials' own command, the replies of both proxy versions, and scores."""

import json
import subprocess
from itertools import pairwise

import httpx
import pytest

MODEL = "podslice-demo"
LAUGH = "ha" * 30  # an endless answer
QUERY = "How many days are in a week?"
TUTORIAL = """curl --request POST \\
--header "Content-type: application/json" \\
-s \\
localhost:8888/generate \\
--data \\
'{
  "model": "podslice-demo",
  "query": "How many days are in a week?"
}'
"""
GREEDY = {"temperature": 0, "per_example_max_decode_steps": 12}


def generate(url: str, **body) -> httpx.Response:
    return httpx.post(f"{url}/generate", json=body, timeout=60)


def test_the_tutorials_curl(llm_url):
    command = TUTORIAL.replace("localhost:8888", llm_url)
    done = subprocess.run(command, shell=True, capture_output=True, text=True, timeout=60)
    reply = json.loads(done.stdout)
    assert list(reply) == ["generate_response"]
    ((text, score),) = reply["generate_response"]
    assert text and score <= 0
    assert done.stdout == json.dumps(reply, indent=4) + "\n"


def test_with_extra_inputs_the_list_alone(llm_url, client):
    ((text, score),) = generate(llm_url, query=QUERY, extra_inputs=GREEDY).json()
    wanted = client.completions.create(model=MODEL, prompt=QUERY, temperature=0, max_tokens=12, logprobs=0).choices[0]
    assert text == wanted.text and score == pytest.approx(sum(wanted.logprobs.token_logprobs), abs=0.05)
    short = generate(llm_url, model=MODEL, query=QUERY, extra_inputs=GREEDY | {"per_example_max_decode_steps": 3.0})
    ((shorter, _),) = short.json()
    assert text.startswith(shorter) and len(shorter) < len(text)
    capped = generate(llm_url, query="x " * 400, extra_inputs=GREEDY | {"per_example_max_decode_steps": 9999})
    assert capped.status_code == 200
    assert generate(llm_url, query=QUERY, extra_inputs={}).json()[0][0]


def test_a_stream_is_an_event_for_each_step(llm_url):
    long = GREEDY | {"per_example_max_decode_steps": 200}  # long, because a short answer may arrive all at once
    ((text, score),) = generate(llm_url, query=LAUGH, extra_inputs=long).json()
    reply = generate(llm_url, query=LAUGH, extra_inputs=long, stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    *events, done = reply.text.removesuffix("\n\n").split("\n\n")
    assert done == "data: [DONE]" and len(events) > 1
    news = [json.loads(event.removeprefix("data: "))[0] for event in events]
    assert "".join(piece for piece, _ in news) == text
    assert news[-1][1] == pytest.approx(score, abs=0.05)
    assert all(later <= before for (_, before), (_, later) in pairwise(news))


def test_jetstreams_body_is_still_jetstreams(llm_url):
    reply = generate(llm_url, prompt=QUERY, max_tokens=5, model="ignored")
    assert list(reply.json()) == ["response"]


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"query": 7}, 400, "query"),
        ({"extra_inputs": {}}, 400, "query"),
        (
            {"query": QUERY, "extra_inputs": {"top_k": 3}},
            400,
            "unknown: top_k; allowed are temperature, per_example",
        ),
        ({"query": QUERY, "extra_inputs": {"per_example_max_decode_steps": 0}}, 400, "per_example_max_decode_steps"),
        ({"query": QUERY, "extra_inputs": {"temperature": -1}}, 400, "temperature must be between"),
        ({"query": QUERY, "model": "/sax/test/other"}, 404, "Served here: podslice-demo"),
        ({"query": "x " * 3000}, 400, "1024"),
        ({"query": "x" * (33 * 2**20)}, 413, "larger than 32 MiB"),
    ],
)
def test_a_refusal_has_both_generations_keys(llm_url, body, status, said):
    reply = generate(llm_url, **body)
    assert reply.status_code == status, reply.text
    assert list(reply.json()) == ["Error", "detail"] and said in reply.json()["Error"]
    assert reply.json()["detail"] == reply.json()["Error"]


def test_scores(llm_url, client):
    answers = ["There are seven days in a week.", " seven", "purple elephants"]
    url = f"{llm_url}/score"
    reply = httpx.post(url, json={"model": MODEL, "prefix": QUERY, "suffix": answers}, timeout=60).json()
    assert reply["model"] == MODEL and len(reply["token_log_probs"]) == 3
    assert reply["scores"] == [pytest.approx(sum(logprobs)) for logprobs in reply["token_log_probs"]]
    alone = httpx.post(url, json={"prefix": QUERY, "suffix": answers[0]}, timeout=60).json()
    assert alone["scores"] == pytest.approx(reply["scores"][:1], abs=0.1)  # bfloat16, in a different batch
    ((text, _),) = generate(llm_url, query=QUERY, extra_inputs=GREEDY | {"per_example_max_decode_steps": 6}).json()
    own = httpx.post(url, json={"prefix": QUERY, "suffix": text}, timeout=60).json()["scores"][0]
    assert own > min(reply["scores"]), "what it says itself is not the least likely"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"prefix": "x"}, 400, "suffix"),
        ({"prefix": "x", "suffix": [7]}, 400, "suffix"),
        ({"prefix": "x", "suffix": []}, 400, "suffixes must be a list of 1 to 128"),
        ({"prefix": "x", "suffix": ["fine", ""]}, 400, "the suffix is empty"),
        ({"prefix": "x", "suffix": "y " * 3000}, 400, "1024"),
        ({"prefix": "x", "suffix": "y", "model": "other"}, 404, "Served here: podslice-demo"),
    ],
)
def test_a_bad_score_is_refused(llm_url, body, status, said):
    reply = httpx.post(f"{llm_url}/score", json=body)
    assert reply.status_code == status and said in reply.json()["Error"] == reply.json()["detail"], reply.text


def test_nothing_compiled(stats):
    assert stats()["compiles_after_ready"] == 0 and stats()["scored_tokens"] > 0
