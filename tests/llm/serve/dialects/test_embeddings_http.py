"""/v1/embeddings with the official client, against the deployed demo model."""

import base64

import httpx
import numpy as np
import openai
import pytest

MODEL = "podslice-demo"
TEXT = "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday."


def embed(client: openai.OpenAI, text, **fields) -> np.ndarray:
    return np.array([entry.embedding for entry in client.embeddings.create(model=MODEL, input=text, **fields).data])


@pytest.mark.slow
def test_texts_tokens_and_lists_of_either(client):
    (vector,) = embed(client, TEXT)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
    (alone,) = embed(client, "One, two, three")
    both = client.embeddings.create(model=MODEL, input=[TEXT, "One, two, three"], user="me")
    assert [entry.index for entry in both.data] == [0, 1]
    assert [entry.object for entry in both.data] == ["embedding"] * 2 and both.object == "list" and both.model == MODEL
    assert both.usage.prompt_tokens == both.usage.total_tokens > 20
    np.testing.assert_allclose([entry.embedding for entry in both.data], [vector, alone], atol=1e-2)  # bfloat16
    np.testing.assert_allclose(
        embed(client, [[5, 6, 7], [8]]), [*embed(client, [5, 6, 7]), *embed(client, [8])], atol=1e-2
    )


def test_what_is_alike_is_near(client):
    week, again, sum_ = embed(client, [TEXT, TEXT.replace("are", "are:"), "12 + 30 = 42"])
    assert week @ again > week @ sum_


def test_encodings(client, llm_url):
    (official,) = embed(client, TEXT)  # the client asks for base64 by itself
    replies = {
        encoding: httpx.post(f"{llm_url}/v1/embeddings", json={"input": TEXT, "encoding_format": encoding}).json()
        for encoding in ("float", "base64", None)
    }
    listed, coded, default = (reply["data"][0]["embedding"] for reply in replies.values())
    assert listed == default == np.frombuffer(base64.b64decode(coded), "<f4").tolist() == official.tolist()


def test_pooling_and_dimensions(client):
    (mean,), (last,) = embed(client, TEXT), embed(client, TEXT, extra_body={"pooling": "last"})
    assert abs(mean - last).max() > 0.01
    np.testing.assert_array_equal(embed(client, TEXT, extra_body={"pooling": "mean"})[0], mean)
    np.testing.assert_array_equal(embed(client, TEXT, dimensions=len(mean))[0], mean)


def test_more_inputs_than_may_wait(client, stats):
    before = stats()["embeddings"]
    vectors = embed(client, [[token % 200 + 10] for token in range(700)])
    assert vectors.shape[0] == 700 and stats()["embeddings"] - before == 700


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"input": None}, "input"),
        ({"input": {"text": "x"}}, "input"),
        ({"input": []}, "input"),
        ({"input": [99999]}, "input"),
        ({"input": ["x"] * 2049}, "input"),
        ({"input": ["fine", "x " * 3000]}, "input"),
        ({"encoding_format": "hex"}, "encoding_format"),
        ({"dimensions": 8}, "dimensions"),
        ({"dimensions": "8"}, "dimensions"),
        ({"pooling": "max"}, "pooling"),
    ],
)
def test_a_bad_body_names_the_field(llm_url, fields, param):
    reply = httpx.post(f"{llm_url}/v1/embeddings", json={"model": MODEL, "input": "Hello"} | fields)
    error = reply.json()["error"]
    assert (reply.status_code, error["param"], error["type"]) == (400, param, "invalid_request_error"), error
    assert error["message"] and error["code"]


def test_an_unknown_model(client):
    with pytest.raises(openai.NotFoundError, match="podslice-demo"):
        client.embeddings.create(model="none", input="x")


def test_nothing_compiled(stats):
    assert stats()["compiles_after_ready"] == 0
