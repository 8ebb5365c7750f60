"""Requests and outputs in vLLM's words. The streams are what vLLM 0.32's CPU build sent."""

import json
from typing import Any

import pytest

from apps.llm.api import Caller, Grammar, RequestError, Sampling, TokenLogprobs, TokenRequest, TokenScore
from apps.llm.engines.vllm import tokens

SAMPLING = Sampling(seed=7)
REQUEST = TokenRequest(id=3, prompt_ids=(5, 6, 7), limit=20, sampling=SAMPLING)


def request(**changes: Any) -> TokenRequest:
    sampling = {name: changes.pop(name) for name in list(changes) if name in Sampling.__struct_fields__}
    return TokenRequest(
        **{"id": 3, "prompt_ids": (5, 6, 7), "limit": 20, "sampling": Sampling(seed=7, **sampling)} | changes
    )


def test_a_plain_request() -> None:
    body = tokens.completion(request(temperature=0.5), (2, 3), seeded=True)
    assert (body["prompt"], body["max_tokens"], body["stream"]) == ([5, 6, 7], 17, True)
    assert (body["temperature"], body["seed"], body["stop_token_ids"]) == (0.5, 7, [2, 3])
    assert body["return_token_ids"] and body["return_tokens_as_token_ids"]
    assert not {"cache_salt", "logprobs", "logit_bias", "allowed_token_ids", "structured_outputs"} & body.keys()
    json.dumps(body)


def test_a_continued_answer_is_a_longer_prompt_with_other_draws() -> None:
    body = tokens.completion(request(answer_ids=(8, 9), min_tokens=5), (2,), seeded=True)
    assert (body["prompt"], body["max_tokens"], body["min_tokens"]) == ([5, 6, 7, 8, 9], 15, 3)
    assert body["seed"] != 7 and 0 <= body["seed"] < 2**63  # vLLM's limit of a seed


def test_seeds_are_left_out_where_they_are_refused_or_nothing_is_drawn() -> None:
    assert "seed" not in tokens.completion(request(), (2,), seeded=False)
    assert "seed" not in tokens.completion(request(temperature=0), (2,), seeded=True)


def test_biases_and_bans_of_single_tokens() -> None:
    given = request(logit_bias={4: 500.0, 5: -3.0}, banned=((9,),), allowed_token_ids=(1, 9))
    body = tokens.completion(given, (2,), seeded=True)
    assert body["logit_bias"] == {"4": 100.0, "5": -3.0, "9": -100.0}
    assert body["allowed_token_ids"] == [1, 9]


def test_what_it_cannot_do_is_refused_by_name() -> None:
    with pytest.raises(RequestError, match="bad_words") as refused:
        tokens.check(request(banned=((9, 10),)))
    assert refused.value.field == "bad_words"
    with pytest.raises(RequestError, match="embeddings"):
        tokens.check(TokenRequest(id=1, prompt_ids=(1,), pooling="mean"))


def test_background_goes_last_and_what_was_moved_first() -> None:
    def urgency(**changes: Any) -> int:
        return tokens.completion(request(**changes), (2,), seeded=True)["priority"]

    plain, moved = urgency(), urgency(moved=True)
    later, background = urgency(priority=1), urgency(caller=Caller(background=True), priority=-5)
    assert moved < plain < later < background


@pytest.mark.parametrize("salts", [("", "a"), ("key x", ""), ("é\udcff", '"]'), ("a", "b")])
def test_salts_survive(salts: tuple[str, ...]) -> None:
    assert tokens.salts_of(tokens.salt_of(salts)) == salts
    assert tokens.salt_of(("", "")) == ""


def test_a_salt_that_is_too_long_is_a_digest_of_its_own() -> None:
    first, second = (tokens.salt_of(("x" * 2000 + end, "")) for end in "ab")
    assert first != second and max(len(first), len(second)) <= tokens.LONGEST_SALT
    assert tokens.salts_of(first) is None


STREAM = """
{"choices":[{"index":0,"text":"?","logprobs":{"text_offset":[0],"token_logprobs":[-0.7],"tokens":["token_id:38"],"top_logprobs":[{"token_id:38":-0.7,"token_id:3":-1.3}]},"finish_reason":null,"stop_reason":null,"prompt_token_ids":[5,6,7],"token_ids":[38]}]}
{"choices":[{"index":0,"text":"","logprobs":{"text_offset":[11],"token_logprobs":[-4.0],"tokens":["token_id:3"],"top_logprobs":[{"token_id:3":-4.0,"token_id:206":-0.1,"token_id:7":-1.5}]},"finish_reason":"stop","stop_reason":3,"prompt_token_ids":null,"token_ids":[3]}]}
{"choices":[],"usage":{"prompt_tokens":20,"total_tokens":22,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":2}}}
"""


def events(text: str) -> list[Any]:
    return [json.loads(line) for line in text.strip().splitlines()]


def test_an_answers_stream() -> None:
    reader = tokens.CompletionReader(request(logprobs=2))
    outputs = [reader.read(event, now) for now, event in enumerate(events(STREAM), 100)]
    first, none, last = outputs
    assert none is None and first is not None and last is not None
    assert (first.token_ids, first.finish_reason, first.entered_ns) == ((38,), None, 100)
    assert first.logprobs == (TokenLogprobs(-0.7, (38, 3), (-0.7, -1.3)),)
    assert (last.token_ids, last.finish_reason, last.cached_tokens, last.entered_ns) == ((3,), "stop", 2, 100)
    # The sampled token was not among the two likeliest, and vLLM names it beside them.
    assert last.logprobs == (TokenLogprobs(-4.0, (206, 7), (-0.1, -1.5)),)


def test_a_stream_that_ends_early_is_the_engines_failure() -> None:
    reader = tokens.CompletionReader(REQUEST)
    reader.read(events(STREAM)[0], 1)
    end = reader.end()
    assert (end.finish_reason, end.of_answer, end.at_fault) == ("error", False, None)


def test_an_old_version_without_usage_still_ends() -> None:
    reader = tokens.CompletionReader(REQUEST)
    assert [reader.read(event, 1) for event in events(STREAM)[1:2]] == [None]
    assert (reader.end().finish_reason, reader.end().token_ids) == ("stop", (3,))


def test_errors_in_a_stream_are_the_requests_or_the_engines() -> None:
    refused = {"error": {"message": "Grammar error", "type": "BadRequestError", "param": None, "code": 400}}
    broken = {"error": {"message": "EngineCore encountered an issue", "type": "InternalServerError", "code": 500}}
    held = request(grammar=Grammar("start: /a/", written=("regex",)))
    first, second = (tokens.CompletionReader(held).read(event, 1) for event in (refused, broken))
    assert first is not None and (first.of_answer, first.at_fault) == (True, "regex")
    assert "Grammar error" in (first.error or "")
    assert second is not None and (second.of_answer, second.at_fault) == (False, None)


def test_scores() -> None:
    answer = {
        "choices": [
            {
                "prompt_logprobs": [
                    None,
                    {"6": {"logprob": -8.8, "rank": 336}, "416": {"logprob": -1.9, "rank": 1}},
                    {"7": {"logprob": -12.2, "rank": 218}, "416": {"logprob": -0.05, "rank": 1}},
                    {"8": {"logprob": -0.5, "rank": 1}},
                ]
            }
        ]
    }
    asked = TokenRequest(id=1, prompt_ids=(5, 6), suffix=(7, 8))
    assert tokens.scoring(asked)["prompt"] == [5, 6, 7, 8]
    output = tokens.scored(asked, answer)
    assert output.scores == (TokenScore(-12.2, 218, 416, -0.05), TokenScore(-0.5, 1, 8, -0.5))
    assert output.finish_reason == "stop"
