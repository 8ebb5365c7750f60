"""Refusals in OpenAI's format: the status, and the field to change."""

import httpx
import openai
import pytest

from tests.llm.serve.serving import wait_until

MODEL = "podslice-demo"
HELLO = [{"role": "user", "content": "Hello"}]
TOOL = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "hot"}, "temperature"),
        ({"temperature": "0.5"}, "temperature"),
        ({"temperature": -1}, "temperature"),
        ({"top_p": -0.1}, "top_p"),
        ({"n": 0}, "n"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"min_tokens": 9, "max_tokens": 2}, "min_tokens"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"stop": [1]}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"prompt": {"text": "hello"}}, "prompt"),
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["fine", 7]}, "prompt"),
        ({"prompt": [99999]}, "prompt"),
        ({"prompt": ["fine", "x " * 3000]}, "prompt"),
        ({"suffix": "end"}, "suffix"),
        ({"best_of": 4}, "best_of"),
        ({"echo": True, "logprobs": 1, "n": 2}, "n"),
        ({"echo": True, "logprobs": 1, "max_tokens": 0, "prompt": [[5, 99999]]}, "prompt"),
        ({"echo": True, "prompt": [-1]}, "prompt"),
        ({"echo": True, "logprobs": 1, "max_tokens": 0, "prompt": "x " * 3000}, "prompt"),
        ({"echo": True, "max_tokens": 0, "temperature": -1}, "temperature"),
        ({"prompt_logprobs": 2}, "prompt_logprobs"),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs"),
        ({"logprobs": 99}, "logprobs"),
        ({"priority": 2**63}, "priority"),
        ({"priority": "high"}, "priority"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"response_format": {"type": "yaml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "no"}}}}, "response_format"),
    ],
)
def test_a_bad_completion_names_the_field(llm_url, fields, param):
    reply = httpx.post(f"{llm_url}/v1/completions", json={"model": MODEL, "prompt": "Hello"} | fields)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error"), error
    assert error["message"] and error["code"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        (
            {"messages": [*HELLO, {"role": "user", "content": [{"type": "image_url"}]}]},
            "messages[1].content[0].image_url",
        ),
        ({"messages": [{"role": "user", "content": "x " * 3000}]}, "messages"),
        ({"max_completion_tokens": 5000}, "max_completion_tokens"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 99}, "top_logprobs"),
        ({"logprobs": 5}, "logprobs"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "g"}}}, "tool_choice"),
    ],
)
def test_a_bad_chat_names_the_field(llm_url, fields, param):
    reply = httpx.post(f"{llm_url}/v1/chat/completions", json={"model": MODEL, "messages": HELLO} | fields)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"]) == (400, param), error


def test_a_prompt_over_the_context(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt="x " * 3000)
    assert refused.value.code == "context_length_exceeded" and "1024" in refused.value.message


def test_an_unknown_model(client, llm_url):
    with pytest.raises(openai.NotFoundError) as refused:
        client.completions.create(model="gpt-none", prompt="x")
    assert refused.value.code == "model_not_found" and refused.value.param == "model"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt-none")
    # The model's name is optional.
    assert httpx.post(f"{llm_url}/v1/completions", json={"prompt": "x", "max_tokens": 1}).json()["model"] == MODEL


@pytest.mark.parametrize("body", ["{bad", "", "[]", '"text"', "\xff"])
def test_a_body_that_is_no_json_object(llm_url, body):
    reply = httpx.post(f"{llm_url}/v1/completions", content=body.encode("latin-1"))
    assert reply.status_code == 400 and reply.json()["error"]["message"]


def test_a_body_without_end_is_refused(llm_url):
    reply = httpx.post(f"{llm_url}/v1/completions", content=b" " * (33 * 2**20), timeout=60)
    assert reply.status_code == 413 and reply.json()["error"]["code"] == "request_too_large"


def test_unknown_paths_and_methods(llm_url):
    missing, wrong = httpx.get(f"{llm_url}/v1/nothing"), httpx.get(f"{llm_url}/v1/completions")
    assert missing.status_code == 404 and "/v1/nothing" in missing.json()["error"]["message"]
    assert wrong.status_code == 405 and wrong.headers["allow"] == "POST" and wrong.json()["error"]["message"]


def test_a_refused_prompt_takes_the_others_of_its_request_with_it(llm_url, stats):
    before = stats()["generated_tokens"]
    body = {"prompt": ["fine", "x " * 3000], "max_tokens": 500, "ignore_eos": True}
    assert httpx.post(f"{llm_url}/v1/completions", json=body).status_code == 400
    wait_until(lambda: stats()["running"] == 0)  # it leaves with the next step
    assert stats()["generated_tokens"] - before < 20
