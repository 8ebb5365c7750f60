"""Stored responses: continued, listed, deleted, and private to their caller."""

import openai
import pytest

from tests.llm.serve.dialects.responses.asking import KEPT, ONE_CALL, QUESTION, TOOL, ask, client_of


def test_a_kept_response_is_continued(client: openai.OpenAI) -> None:
    """Continuing by id gives the same answer as sending the whole conversation."""
    called = ask(client, **ONE_CALL)
    (call,) = called.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": [{"type": "input_text", "text": "no"}]}
    offer = {"tools": [TOOL], "tool_choice": "none", "reasoning": {"effort": "none"}}
    short = ask(client, [result], previous_response_id=called.id, **offer)
    whole = ask(client, [{"role": "user", "content": QUESTION}, call, result], store=False, **offer)
    assert short.output_text == whole.output_text and short.usage.input_tokens == whole.usage.input_tokens
    assert short.previous_response_id == called.id
    kinds = [item.type for item in client.responses.input_items.list(short.id, order="asc")]
    assert kinds == ["message", "function_call", "function_call_output"]
    client.responses.delete(called.id)
    third = list(ask(client, "And now?", previous_response_id=short.id, stream=True, **offer))[-1].response
    assert third.usage.input_tokens > short.usage.input_tokens
    assert client.responses.retrieve(third.id).output_text == third.output_text


def test_input_items_come_in_pages(client: openai.OpenAI) -> None:
    talk = [{"role": role, "content": str(i)} for i, role in enumerate(("user", "assistant", "user"))]
    response = ask(client, talk)
    items = list(client.responses.input_items.list(response.id, limit=2))
    assert [item.content[0].text for item in items] == ["2", "1", "0"] and len({item.id for item in items}) == 3
    first = client.responses.input_items.list(response.id, limit=2)
    assert first.has_more and (first.first_id, first.last_id) == (items[0].id, items[1].id)
    for query, param in (({"limit": 0}, "limit"), ({"order": "up"}, "order"), ({"after": "x"}, "after")):
        with pytest.raises(openai.BadRequestError) as refused:
            client.responses.input_items.list(response.id, extra_query=query)
        assert refused.value.param == param


def test_a_kept_response_is_its_callers_alone(client: openai.OpenAI, keeping: str) -> None:
    response = ask(client)
    assert client.responses.retrieve(response.id) == response
    assert client_of(keeping, "a-second-key").responses.retrieve(response.id) == response
    bob = client_of(keeping, "b-key")
    for look in (
        bob.responses.retrieve,
        bob.responses.delete,
        bob.responses.input_items.list,
        lambda id: ask(bob, previous_response_id=id),
    ):
        refusals = []
        for id in (response.id, "resp_" + "0" * 32):
            with pytest.raises((openai.NotFoundError, openai.BadRequestError)) as refused:
                look(id)
            refusals.append(refused.value.message.replace(id, "ID"))
        assert refusals[0] == refusals[1] and "no response" in refusals[0]
    client.responses.delete(response.id)
    with pytest.raises(openai.NotFoundError, match="deleted"):
        client.responses.retrieve(response.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.delete(response.id)


def test_what_is_not_kept(client: openai.OpenAI) -> None:
    unkept = ask(client, store=False)
    oldest, *_ = [ask(client) for _ in range(KEPT + 1)]
    for id in (unkept.id, oldest.id):
        with pytest.raises(openai.NotFoundError, match=f"its last {KEPT} in memory"):
            client.responses.retrieve(id)
    with pytest.raises(openai.BadRequestError) as refused:
        ask(client, previous_response_id=oldest.id)
    assert (refused.value.param, refused.value.code) == ("previous_response_id", "previous_response_not_found")


def test_a_server_that_keeps_none(stateless: openai.OpenAI) -> None:
    response = ask(stateless)
    assert response.store is False
    with pytest.raises(openai.NotFoundError, match="stored_responses is 0"):
        stateless.responses.retrieve(response.id)
    for field, value in (("store", True), ("previous_response_id", response.id)):
        with pytest.raises(openai.BadRequestError, match="stored_responses is 0") as refused:
            ask(stateless, **{field: value})
        assert refused.value.param == field
