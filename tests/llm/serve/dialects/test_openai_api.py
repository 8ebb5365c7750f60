"""The official client against a deployed demo model: answers, streams, and every sampling field."""

import json

import openai
import pytest

MODEL = "podslice-demo"
WEEK = [{"role": "user", "content": "How many days are in a week?"}]


def greedy(client: openai.OpenAI, **fields) -> openai.types.chat.ChatCompletion:
    return client.chat.completions.create(model=MODEL, messages=WEEK, temperature=0, **fields)


def complete(client: openai.OpenAI, prompt="One, two, three,", **fields) -> openai.types.Completion:
    return client.completions.create(model=MODEL, prompt=prompt, **fields)


def test_models(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "podslice"


def test_chat_answers_rightly(client):
    answer = greedy(client)
    assert "seven" in answer.choices[0].message.content.lower() or "7" in answer.choices[0].message.content
    assert answer.choices[0].finish_reason == "stop" and answer.choices[0].message.role == "assistant"
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.model == MODEL and answer.object == "chat.completion"


def test_chat_takes_parts_of_text_and_the_developer_role(client):
    parts = [{"type": "text", "text": "How many days "}, {"type": "text", "text": "are in a week?"}]
    answer = client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": parts}], temperature=0, extra_body={"banana": 1}
    )
    assert answer.choices[0].message.content == greedy(client).choices[0].message.content
    developer = [{"role": "developer", "content": "Be brief."}, *WEEK]
    system = [{"role": "system", "content": "Be brief."}, *WEEK]
    texts = [
        client.chat.completions.create(model=MODEL, messages=messages, temperature=0).choices[0].message.content
        for messages in (developer, system)
    ]
    assert texts[0] == texts[1]


def test_chat_streams_the_same_text(client):
    whole = greedy(client)
    chunks = list(greedy(client, stream=True, stream_options={"include_usage": True}))
    *news, last = chunks
    assert news[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content for chunk in news) == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in news][-1] == "stop"
    assert len({chunk.id for chunk in chunks}) == 1
    assert last.choices == [] and last.usage.completion_tokens == whole.usage.completion_tokens
    assert all(chunk.usage is None for chunk in news)


def test_a_stream_comes_in_pieces(client):
    """A long stream, because on a busy machine several tokens may arrive at once."""
    endless = {"max_tokens": 300, "extra_body": {"ignore_eos": True}}
    assert len(list(complete(client, stream=True, **endless))) > 10


def test_completions_take_text_tokens_and_lists(client):
    one = complete(client, max_tokens=4, temperature=0)
    assert one.usage.completion_tokens == 4 and one.choices[0].finish_reason == "length"
    both = complete(client, ["One, two, three,", "Red and"], max_tokens=4, temperature=0)
    assert [choice.index for choice in both.choices] == [0, 1]
    assert both.choices[0].text == one.choices[0].text
    ids = complete(client, [5, 6, 7, 8], max_tokens=4, temperature=0)
    lists = complete(client, [[5, 6, 7, 8], [9, 10]], max_tokens=4, temperature=0)
    assert lists.choices[0].text == ids.choices[0].text and lists.usage.prompt_tokens == 6
    assert complete(client, temperature=0).usage.completion_tokens <= 16  # OpenAI's default


def test_completions_stream_many_choices_at_once(client):
    fields = {"max_tokens": 6, "seed": 3, "n": 2, "echo": True}
    whole = complete(client, ["One, two,", "Red and"], **fields)
    texts = ["", "", "", ""]
    for chunk in complete(client, ["One, two,", "Red and"], stream=True, **fields):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [choice.text for choice in whole.choices]
    assert texts[0].startswith("One, two,") and texts[3].startswith("Red and")


def test_the_context_limits_a_default_answer_but_refuses_an_asked_one(client):
    room = 1024 - 5
    long = [5] * (1024 - 5)
    assert complete(client, long, extra_body={"ignore_eos": True}).usage.completion_tokens == 5
    with pytest.raises(openai.BadRequestError) as refused:
        complete(client, long, max_tokens=6)
    assert refused.value.param == "max_tokens" and str(room) in refused.value.message


def test_seed_and_n(client):
    first, again, other = (complete(client, seed=seed, n=3, max_tokens=12).choices for seed in (1, 1, 2))
    assert [c.text for c in first] == [c.text for c in again]
    assert [c.text for c in first] != [c.text for c in other]
    assert len({c.text for c in first}) > 1 and [c.index for c in first] == [0, 1, 2]


def test_stop_strings(client):
    text = greedy(client).choices[0].message.content
    stop = text[len(text) // 2 :][:3]  # likely not at token boundaries
    stopped = greedy(client, stop=[stop, "never said"])
    assert stopped.choices[0].message.content == text.split(stop)[0]
    assert stopped.choices[0].finish_reason == "stop" and stopped.choices[0].stop_reason == stop
    streamed = "".join(chunk.choices[0].delta.content or "" for chunk in greedy(client, stop=stop, stream=True))
    assert streamed == text.split(stop)[0]


def test_stop_token_ids_and_ends(client):
    tokens = greedy(client, logprobs=True, top_logprobs=0).choices[0].logprobs.content
    assert len(tokens) >= 3
    endless = complete(client, max_tokens=40, extra_body={"ignore_eos": True, "min_tokens": 40})
    assert endless.usage.completion_tokens == 40 and endless.choices[0].finish_reason == "length"
    pushed = {"logit_bias": {"70": 100}, "temperature": 0, "max_tokens": 5}
    assert complete(client, **pushed).usage.completion_tokens == 5
    stopped = complete(client, **pushed, extra_body={"stop_token_ids": [70]})
    assert stopped.usage.completion_tokens == 1 and stopped.choices[0].stop_reason == 70


def test_sampling_fields_of_openai_and_vllm(client):
    base = complete(client, temperature=0, max_tokens=10).choices[0].text
    assert complete(client, temperature=1, max_tokens=10, extra_body={"top_k": 1}).choices[0].text == base
    for top_p in (1e-6, 0):
        assert complete(client, temperature=1, max_tokens=10, top_p=top_p).choices[0].text == base
    assert complete(client, temperature=0, max_tokens=10.0).choices[0].text == base
    assert complete(client, temperature=1, max_tokens=10, extra_body={"min_p": 1.0}).choices[0].text == base
    pushed = {"temperature": 0, "max_tokens": 3, "logprobs": 0}
    biased = complete(client, logit_bias={"70": 100}, **pushed).choices[0].logprobs.tokens
    assert len(set(biased)) == 1
    for penalty in ({"frequency_penalty": 2.0}, {"presence_penalty": 2.0}, {"extra_body": {"repetition_penalty": 9.0}}):
        assert complete(client, temperature=0, max_tokens=60, **penalty).choices[0].text


def test_logprobs(client):
    assert greedy(client, top_logprobs=0).choices[0].logprobs is None  # as vLLM: none are asked for
    chat = greedy(client, logprobs=True, top_logprobs=3).choices[0]
    content = chat.logprobs.content
    assert "".join(token.token for token in content).startswith(chat.message.content)
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 3 for token in content)
    assert content[0].top_logprobs[0].token == content[0].token  # greedy
    assert bytes(content[0].bytes).decode() == content[0].token
    legacy = complete(client, temperature=0, max_tokens=5, logprobs=2).choices[0]
    assert legacy.text.startswith("".join(legacy.logprobs.tokens)[: len(legacy.text)])
    assert legacy.logprobs.text_offset[0] == 0 and len(legacy.logprobs.top_logprobs[0]) >= 2
    streamed = [c.choices[0].logprobs for c in greedy(client, logprobs=True, top_logprobs=1, stream=True)]
    assert [t.token for part in streamed if part for t in part.content] == [t.token for t in content]


def test_json_schema(client):
    schema = {
        "type": "object",
        "properties": {"days": {"type": "integer"}, "sure": {"type": "boolean"}},
        "required": ["days", "sure"],
        "additionalProperties": False,
    }
    form = {"type": "json_schema", "json_schema": {"name": "week", "schema": schema}}
    for seed in range(3):
        answer = greedy(client, response_format=form, seed=seed, max_tokens=60).choices[0]
        if answer.finish_reason == "stop":
            assert set(json.loads(answer.message.content)) == {"days", "sure"}
        else:  # a small model may never stop counting; its answer must still be a valid beginning
            assert answer.message.content.lstrip().startswith("{")
    anything = greedy(client, response_format={"type": "json_object"}, max_tokens=20).choices[0].message.content
    assert anything.lstrip().startswith("{")
    text = greedy(client, response_format={"type": "text"}).choices[0].message.content
    assert text == greedy(client).choices[0].message.content


def test_a_long_prompt_seen_before_is_cached(client):
    prompt = "The days of the week are Monday, Tuesday, Wednesday, Thursday, Friday, Saturday and Sunday. " * 8
    first = complete(client, prompt, max_tokens=2).usage
    again = complete(client, prompt, max_tokens=2).usage
    assert again.prompt_tokens_details.cached_tokens > 0
    assert again.prompt_tokens_details.cached_tokens < first.prompt_tokens == again.prompt_tokens


def test_none_of_these_requests_compiled_anything(stats):
    assert stats()["compiles_after_ready"] == 0
