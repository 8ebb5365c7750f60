"""vLLM's fields that hold an answer to something: it does what they say, or is refused by name.

Oracles: Python's regular expressions, jsonschema, and the text of an answer for what is said of its tokens.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import openai
import pytest
from jsonschema import Draft202012Validator

from tests.llm.schemas.test_gbnf import QUERIES, QUERY
from tests.llm.serve.serving import MODEL, LocalServer

HELLO = [{"role": "user", "content": "Hello"}]
QUICK = {"chat_template_kwargs": {"enable_thinking": False}}  # a random model may reason forever
SCHEMA = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
CHOICES = ["rouge", 'd\'or "fin"', "été/ciel", "a\nb"]
REGEX = r"(\d{3}-[a-c/]+|\w\w) (é|🦊|日){4}"
GRAMMAR = 'start: word ("," word)*\nword: /[a-c]{2}/ | "}"\n'


def of_grammar(text: str) -> bool:
    return re.fullmatch(r"([a-c]{2}|\})(,([a-c]{2}|\}))*", text) is not None


Check = Callable[[str], Any]
CONSTRAINTS: dict[str, tuple[Any, Check]] = {
    "choice": (CHOICES, lambda text: text in CHOICES),
    "regex": (REGEX, lambda text: re.fullmatch(REGEX, text)),
    "grammar": (GRAMMAR, of_grammar),
    "json": (SCHEMA, lambda text: Draft202012Validator(SCHEMA).is_valid(json.loads(text))),
}
FIELDS = [
    *((kind, {"structured_outputs": {kind: value}}) for kind, (value, _) in CONSTRAINTS.items()),
    *((kind, {f"guided_{kind}": value}) for kind, (value, _) in CONSTRAINTS.items()),
    ("json", {"guided_json": json.dumps(SCHEMA)}),
    ("json", {"response_format": {"type": "json_object", "schema": SCHEMA}}),
]
CONSTRAINTS["gbnf"] = QUERY, QUERIES.__contains__
FIELDS += [("gbnf", {"structured_outputs": {"grammar": QUERY}}), ("gbnf", {"guided_grammar": QUERY + "#" * 1000})]


@pytest.fixture(scope="module")
def http(chat_server: LocalServer) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=chat_server.url, timeout=60) as client:
        yield client


def ended(reply: httpx.Response) -> dict[str, Any]:
    assert reply.status_code == 200, reply.text
    (choice,) = reply.json()["choices"]
    return choice


@pytest.mark.parametrize(("kind", "fields"), FIELDS, ids=[f"{next(iter(fields))}-{kind}" for kind, fields in FIELDS])
def test_an_answer_is_what_the_field_says(http: httpx.Client, kind: str, fields: dict[str, Any]) -> None:
    check = CONSTRAINTS[kind][1]
    body = {"max_tokens": 120, "seed": 3, "logit_bias": {"1": 3}} | fields
    choice = ended(http.post("/v1/completions", json={"prompt": "the"} | body))
    assert choice["finish_reason"] == "stop" and check(choice["text"]), choice
    choice = ended(http.post("/v1/chat/completions", json={"messages": HELLO} | body | QUICK))
    assert choice["finish_reason"] == "stop" and check(choice["message"]["content"]), choice


def test_reasoning_comes_before_what_is_constrained(http: httpx.Client) -> None:
    fields = {"guided_choice": CHOICES, "max_tokens": 400, "n": 8, "seed": 1}
    reply = http.post("/v1/chat/completions", json={"messages": HELLO} | fields)
    done = [choice["message"] for choice in reply.json()["choices"] if choice["finish_reason"] == "stop"]
    assert all(message["content"] in CHOICES for message in done)


REFUSED = {
    "guided_choice": ([], ["a", ""], "a"),
    "guided_regex": ("(", 5),
    "guided_grammar": ("root ::= [", "root ::= a", "start: ["),
    "guided_json": ("{", {"type": "no"}),
    "structured_outputs": ({}, {"regex": "a", "choice": ["b"]}, {"regex": "a", "whitespace_pattern": " "}),
    "allowed_token_ids": ([], [99999], [-1], "a"),
    "bad_words": ("a", [""], ["x"] * 200),
    "truncate_prompt_tokens": (5,),
    "use_beam_search": (True,),
    "length_penalty": (2.0,),
    "logits_processors": (["x"],),
    "skip_special_tokens": (False,),
    "guided_whitespace_pattern": (" ",),
}
REFUSED_IN_CHATS = {
    "functions": ([{"name": "f"}],),
    "function_call": ("auto", {"name": "f"}),
    "modalities": (["text", "audio"],),
    "audio": ({"voice": "x"},),
    "web_search_options": ({"a": 1},),
    "documents": ([{"text": "x"}],),
    "chat_template": ("{{ x }}",),
    "prompt_logprobs": (1,),
    "echo": (True,),
    "continue_final_message": (True,),
}


@pytest.mark.parametrize("field", [*REFUSED, *REFUSED_IN_CHATS])
def test_what_is_not_done_is_refused_by_name(http: httpx.Client, field: str) -> None:
    for value in (REFUSED | REFUSED_IN_CHATS)[field]:
        places = {"/v1/chat/completions": {"messages": HELLO}}
        if field in REFUSED:
            places["/v1/completions"] = {"prompt": "x"}  # type: ignore[dict-item]
        for path, body in places.items():
            reply = http.post(path, json=body | {field: value, "max_tokens": 2})
            error = reply.json()["error"]
            assert (reply.status_code, error["param"].split(".")[0].split("[")[0]) == (400, field), (path, value, error)


NOTHING = {
    "structured_outputs": None, "bad_words": [], "use_beam_search": False, "length_penalty": 1.0, "functions": [],
    "skip_special_tokens": True, "modalities": ["text"], "function_call": "none", "continue_final_message": False,
    "add_generation_prompt": True, "logits_processors": [], "echo": False, "response_format": {"type": "text"},
}  # fmt: skip


def test_values_that_ask_for_nothing_are_taken(http: httpx.Client) -> None:
    body = {"messages": HELLO, "max_tokens": 3, "temperature": 0} | QUICK
    plain = http.post("/v1/chat/completions", json=body).json()["choices"]
    assert http.post("/v1/chat/completions", json=body | NOTHING).json()["choices"] == plain


def test_two_constraints_at_once_are_refused(http: httpx.Client) -> None:
    body = {"prompt": "x", "guided_regex": "a", "response_format": {"type": "json_object"}}
    assert http.post("/v1/completions", json=body).json()["error"]["param"] == "guided_regex"


def test_tokens_in_words_are_those_of_the_text(http: httpx.Client) -> None:
    """Characters of two to four bytes are several tokens here; the text itself says where each begins."""
    body = {"max_tokens": 120, "seed": 3, "guided_regex": "( fox|é|🦊|日){9}"}
    told = ended(http.post("/v1/completions", json={"prompt": "the", "logprobs": 1, "echo": True} | body))
    text, logprobs = told["text"], told["logprobs"]
    assert text.startswith("the") and any(token == "\ufffd" for token in logprobs["tokens"])
    offsets = logprobs["text_offset"]
    whole = [(at, token) for at, token in zip(offsets, logprobs["tokens"]) if "\ufffd" not in token]
    shown = [(at, token) for at, token in whole if not token.startswith("<") and token.strip("\n")]
    assert shown and all(text[at:].startswith(token) for at, token in shown)
    assert offsets == sorted(offsets) and offsets[-1] <= len(text)
    for at, token in zip(offsets, logprobs["tokens"]):
        assert "\ufffd" not in token or ord(text[at]) > 127, "a part of a character is where the character is"
    chat = ended(
        http.post("/v1/chat/completions", json={"messages": HELLO, "logprobs": True, "top_logprobs": 3} | body | QUICK)
    )
    entries = chat["logprobs"]["content"]
    spelt = b"".join(bytes(entry["bytes"]) for entry in entries if not entry["token"].startswith("<"))
    assert spelt.decode().strip() == chat["message"]["content"].strip()
    for entry in entries:
        assert all(isinstance(top["bytes"], list) and top["bytes"] for top in entry["top_logprobs"])


def test_continuing_the_last_message(chat_server: LocalServer) -> None:
    """The prompt is the one that transformers makes of it; the answer has only what is new."""
    from apps.llm.http.openai.requests import ChatBody

    messages = [*HELLO, {"role": "assistant", "content": "the quick"}]
    tokenizer = chat_server.engine.tokenizer
    expected = tokenizer._hf.apply_chat_template(messages, tokenize=False, continue_final_message=True)
    body = ChatBody(messages=messages, continue_final_message=True, add_generation_prompt=False)
    ids, _ = chat_server.engine.chat(body.request())
    assert tokenizer.decode(ids, special=True) == expected and expected.endswith("the quick")
    bare = ChatBody(messages=messages, add_generation_prompt=False)
    expected = tokenizer._hf.apply_chat_template(messages, tokenize=False)
    assert tokenizer.decode(chat_server.engine.chat(bare.request())[0], special=True) == expected
    with openai.OpenAI(base_url=f"{chat_server.url}/v1", api_key="none", max_retries=0) as client:
        extra = {"continue_final_message": True, "add_generation_prompt": False, "guided_choice": [" brown fox"]}
        answer = client.chat.completions.create(model=MODEL, messages=messages, extra_body=extra, max_tokens=60)
    assert "brown fox" in (answer.choices[0].message.content or "") and "the quick" not in str(answer)


def test_a_request_that_can_never_be_admitted_is_no_matter_of_time(http: httpx.Client) -> None:
    """429 says: try again. With as many answers as may wait, that is of no use."""
    for prompts, n, param in ((256, 128, "n"), (256, 4, "n"), (129, 2, "n")):
        reply = http.post("/v1/completions", json={"prompt": ["x"] * prompts, "n": n, "max_tokens": 1})
        assert (reply.status_code, reply.json()["error"]["param"]) == (400, param)
    reply = http.post("/v1/completions", json={"prompt": ["x"] * 4, "n": 2, "max_tokens": 1})
    assert reply.status_code == 200 and len(reply.json()["choices"]) == 8
