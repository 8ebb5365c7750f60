"""What the playground sends, and what it shows for which event."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from apps.playground import conversation
from apps.playground.conversation import StreamedAnswer
from apps.playground.drawing import Drawing, call, schedulers
from apps.playground.slices import SliceBox, boxes, cell_html, hosts, waiting


def chunk(finish: str | None = None, logprobs: list[dict[str, Any]] | None = None, **delta: Any) -> dict[str, Any]:
    listed = None if logprobs is None else {"content": logprobs}
    return {"choices": [{"index": 0, "delta": delta, "logprobs": listed, "finish_reason": finish}], "usage": None}


def piece(index: int, arguments: str, **more: Any) -> dict[str, Any]:
    return {"index": index, "function": {"arguments": arguments} | more.pop("function", {}), **more}


def token(text: str, logprob: float, *others: tuple[str, float]) -> dict[str, Any]:
    top = [{"token": other, "logprob": value} for other, value in ((text, logprob), *others)]
    return {"token": text, "logprob": logprob, "top_logprobs": top}


QUESTION = {"role": "user", "content": "Rain?"}
CALLING = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"id": name, "type": "function", "function": {"name": f"f_{name}", "arguments": "{}"}} for name in "ab"
    ],
}


def test_an_answer_with_thinking_text_and_speed() -> None:
    answer = StreamedAnswer(10.0)
    answer.take(chunk(role="assistant", content=""), 10.1)
    assert answer.speed() == ""
    answer.take(chunk(reasoning_content="Hm"), 10.5)
    assert answer.speed() == "TTFT 0.50 s"
    (thinking,) = conversation.shown([], answer)
    assert thinking["metadata"] == {"title": "Thinking", "status": "pending"}
    answer.take(chunk(content="Yes"), 11.0)
    answer.take(chunk(finish="stop", content="."), 11.5)
    answer.take({"choices": [], "usage": {"completion_tokens": 5}}, 30.0)
    assert answer.speed() == "TTFT 0.50 s · 4.0 tokens/s · 5 tokens · ended by stop"
    assert answer.message() == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm"}
    question, thinking, text = conversation.shown([QUESTION], answer)
    assert question == QUESTION and text == {"role": "assistant", "content": "Yes."}
    assert thinking["metadata"] == {"title": "Thinking", "status": "done"}


def test_calls_in_pieces_and_their_results_in_turn() -> None:
    answer = StreamedAnswer(0)
    for calls in (
        [piece(0, "", id="a", function={"name": "f_a"})],
        [piece(0, "{"), piece(1, "{}", id="b", function={"name": "f_b"})],
        [piece(0, "}")],
    ):
        answer.take(chunk(tool_calls=calls), 1)
    assert answer.message() == CALLING
    messages = [QUESTION, answer.message()]
    assert conversation.hint(messages) == "Result of f_a, as text or JSON"
    messages = conversation.with_text(messages, "wet")
    assert messages[-1] == {"role": "tool", "tool_call_id": "a", "content": "wet"}
    assert conversation.hint(messages) == "Result of f_b, as text or JSON"
    messages = conversation.with_text(messages, "dry")
    assert messages[-1]["tool_call_id"] == "b" and conversation.unanswered(messages) == []
    titles = [box.get("metadata", {}).get("title") for box in conversation.shown(messages)]
    assert titles == [None, "Call of f_a", "Call of f_b", "Result of f_a", "Result of f_b"]
    assert conversation.with_text(messages, "next")[-1] == {"role": "user", "content": "next"}


def test_a_result_cannot_leave_its_box() -> None:
    messages = conversation.with_text([QUESTION, CALLING], "```\n<b>")
    assert conversation.shown(messages)[-1]["content"] == "````json\n```\n<b>\n````"


def test_what_is_sent() -> None:
    body = conversation.request(
        "m", "Be brief.", [QUESTION], {"temperature": 0, "seed": None}, conversation.WEATHER, "get_weather", "low", 5
    )
    assert [message["role"] for message in body["messages"]] == ["system", "user"]
    assert body["tool_choice"] == {"type": "function", "function": {"name": "get_weather"}}
    assert body["tools"] == json.loads(conversation.WEATHER)
    assert (body["temperature"], body["reasoning_effort"], body["top_logprobs"]) == (0, "low", 5)
    assert body["stream_options"] == {"include_usage": True} and "seed" not in body
    after = conversation.request(
        None, " ", conversation.with_text([QUESTION, CALLING], "wet"), {}, conversation.WEATHER, "required"
    )
    assert after["tool_choice"] == "auto"
    assert after.keys() == {"messages", "stream", "stream_options", "tools", "tool_choice", "parallel_tool_calls"}
    assert "tools" not in conversation.request(None, "", [QUESTION], {}, "[]", "required")


@pytest.mark.parametrize(("tools", "said"), [("[", "not valid JSON"), ("{}", "must be a JSON list")])
def test_tools_that_cannot_be_sent(tools: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        conversation.request(None, "", [QUESTION], {}, tools)


def test_tokens_with_the_likeliest_ones_on_hover() -> None:
    assert conversation.tokens_html([]) == ""
    drawn = conversation.tokens_html([token("<b>\n", -0.6931472, (" no", -0.9162907)), token("x", 0.0)])
    assert "&lt;b&gt;⏎" in drawn and "<b>" not in drawn
    assert "<tr class=chosen><td>&lt;b&gt;⏎</td><td>50.0 %</td></tr><tr><td>\u00a0no</td><td>40.0 %</td></tr>" in drawn
    assert "hsl(60 " in drawn and "hsl(120 " in drawn


def image(kind: str, index: int, png: bytes, **more: Any) -> dict[str, Any]:
    return {"type": kind, "image_index": index, "b64_json": base64.b64encode(png).decode(), **more}


def test_previews_give_way_to_pictures_with_their_seeds() -> None:
    drawing = Drawing(2)
    assert drawing.gallery() == [] and drawing.progress() == "0 of 2 pictures"
    assert not drawing.take({"type": "image_generation.step", "image_index": 1, "step": 3, "steps": 9})
    assert drawing.progress() == "0 of 2 pictures · steps 3/9"
    assert drawing.take(image("image_generation.partial_image", 1, b"early", partial_image_index=0))
    assert drawing.gallery() == [(b"early", "preview, step 3")]
    assert drawing.take(image("image_edit.completed", 0, b"first", seed=0, warnings=["cut"]))
    assert drawing.take(image("image_edit.completed", 1, b"second", seed=8, warnings=["cut"]))
    assert drawing.gallery() == [(b"first", "seed 0"), (b"second", "seed 8")]
    assert drawing.progress() == "2 of 2 pictures · cut"


def test_a_request_for_pictures() -> None:
    fields = {"prompt": "a star", "seed": 0, "size": "", "guidance_scale": None}
    asked = {"n": 2, "partial_images": 3, "stream": True, "progress": True}
    assert call(fields, 2, 3) == ("/v1/images/generations", {"json": {"prompt": "a star", "seed": 0} | asked})
    path, options = call(fields, 2, 3, b"png", 0.5)
    assert path == "/v1/images/edits" and options["files"]["image"][1] == b"png"
    assert options["data"] == {
        **{"prompt": "a star", "seed": "0", "strength": "0.5"},
        **{"n": "2", "partial_images": "3", "stream": "true", "progress": "true"},
    }


def test_schedulers_by_their_names_elsewhere() -> None:
    samplers = [{"name": "Euler a", "aliases": ["euler-ancestral"]}, {"name": "odd", "aliases": []}]
    assert schedulers(samplers) == [("Euler a", "euler-ancestral")]


def entry(model: str, wanted: int, assigned: int, *states: str, **more: Any) -> dict[str, Any]:
    replicas = [{"id": state, "state": state, "node": "n", "address": f"10.0.0.{i}"} for i, state in enumerate(states)]
    facts = {"model": model, "model_path": "catalog.local", "max_replicas": wanted, "assigned_replicas": assigned}
    active = states.count("RUNNING")
    return facts | {"active_replicas": active, "state": "LOADED", "reason": None, "replicas": replicas} | more


def cell(total: int | None, *models: dict[str, Any], kind: str = "v5e:4x8") -> dict[str, Any]:
    in_use = sum(model["assigned_replicas"] for model in models)
    slices = {"kind": kind, "total": total, "in_use": in_use}
    return {"sax_cell": "/sax/test", "slices": slices, "unloading": ["/sax/test/gone"], "models": list(models)}


def test_the_map_of_a_cell() -> None:
    waits = "1 of 3 replicas have a slice; all 4 of the cell are assigned"
    three = cell(
        4, entry("/sax/test/a", 2, 2, "RUNNING"), entry("/sax/test/b", 3, 1, "STARTING", state="LOADING", reason=waits)
    )
    assert boxes(three) == [
        SliceBox("/sax/test/a", "RUNNING", "10.0.0.0"),
        SliceBox("/sax/test/a", "ASSIGNED"),
        SliceBox("/sax/test/b", "STARTING", "10.0.0.0"),
        SliceBox(),
    ]
    assert waiting(three) == [
        "/sax/test/a (LOADED): 1 of 2 replicas answer",
        f"/sax/test/b (LOADING): {waits}",
        "/sax/test/gone: unpublished, and finishes its open requests",
    ]
    drawn = cell_html(three)
    assert "3 of 4 slices in use, each v5e:4x8; hosts of each: 8" in drawn
    assert drawn.count('title="host 7"') == 4 and waits in drawn


def test_the_map_of_a_cell_on_cpus() -> None:
    drawn = cell_html(cell(None, entry("/sax/test/<a>", 1, 1, "RUNNING"), kind="CPU"))
    assert "/sax/test: on CPUs" in drawn and "&lt;a&gt;" in drawn and "<a>" not in drawn
    assert drawn.count('title="host') == 1 and "free" not in drawn
    assert "Nothing is published" in cell_html(cell(None, kind="CPU"))


@pytest.mark.parametrize(("kind", "number"), [("v5e:4x8", 8), ("v5e:2x4:8t", 1), ("CPU", 1), ("v99:2x2", 1)])
def test_hosts_of_a_slice(kind: str, number: int) -> None:
    assert hosts(kind) == number


def test_a_picture_is_sent_as_openai_has_it(tmp_path: Path) -> None:
    """Source: `image_url` of OpenAI's API reference, chat completions."""
    file = tmp_path / "scene.JPG"
    file.write_bytes(b"pixels")
    messages = conversation.with_text([QUESTION], "What is this?", str(file))
    (_, asked) = conversation.request("m", "", messages, {})["messages"]
    url = "data:image/jpeg;base64,cGl4ZWxz"
    assert asked["content"] == [
        {"type": "image_url", "image_url": {"url": url}},
        {"type": "text", "text": "What is this?"},
    ]
    assert [box["content"] for box in conversation.shown(messages)][1:] == [{"path": str(file)}, "What is this?"]
    file.unlink()
    with pytest.raises(ValueError, match="no longer there: begin a new chat"):
        conversation.request("m", "", messages, {})
