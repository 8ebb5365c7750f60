"""Images over HTTP, in three dialects: the text that transformers' model generates after its own chat template."""

import base64
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import transformers
from PIL import Image

from apps.llm.api import RequestError
from apps.llm.chat.conversation import ChatRequest, Conversation
from apps.llm.chat.images import SentImage
from apps.llm.http.app import http_app
from apps.llm.served.text_model import TextModel
from apps.llm.text import Engine
from tests.http_servers import served
from tests.llm.images import seeing_models
from tests.llm.images.seeing_models import IMAGE, scene

ANSWER = 6
PICTURES = [scene(61, 40, 24), scene(62, 64, 64), scene(63, 24, 24)]


def base64_of(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def url(image: Image.Image) -> str:
    return f"data:image/png;base64,{base64_of(image)}"


@contextmanager
def serving(engine: Engine) -> Iterator[httpx.Client]:
    model = TextModel("sees", engine, step_deadline_s=60)
    with (
        served(http_app(model, stored_responses=9)) as address,
        httpx.Client(base_url=address, timeout=120, trust_env=False) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def client(load_seeing: Callable[..., Engine]) -> Iterator[httpx.Client]:
    with serving(load_seeing()) as client:
        yield client


def written(image: Image.Image, family: str) -> tuple[str, str]:
    """An image in a rendered chat, and in the prompt that transformers' processor of the family makes of it."""
    token, _, begin, end, *_ = seeing_models.MARKS
    if family == "gemma3":
        return begin, f"\n\n{begin}{token * 16}{end}\n\n"
    if family == "gemma4":
        count = seeing_models.processor(family)(images=image)["num_soft_tokens_per_image"][0]
        return token, f"{begin}{token * count}{end}"
    return token, token * int(np.prod(seeing_models.processor()(images=image)["image_grid_thw"][0]) // 4)


def expected(folder: Path, *turns: tuple[str, list[str | Image.Image]], family: str = "qwen3_5") -> tuple[str, int]:
    """Transformers' answer to a chat, and how many tokens its prompt has."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    messages = [
        {
            "role": role,
            "content": [{"type": "text", "text": p} if isinstance(p, str) else {"type": "image"} for p in parts],
        }
        for role, parts in turns
    ]
    images = [part for _, parts in turns for part in parts if not isinstance(part, str)]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    first, *rest = text.split(written(PICTURES[0], family)[0])
    for image, more in zip(images, rest, strict=True):
        first += written(image, family)[1] + more
    ids = tokenizer(first, add_special_tokens=False)["input_ids"]
    assert ids.count(IMAGE) > 2 * len(images)
    answer = seeing_models.greedy(seeing_models.make(family), images, ids, ANSWER)
    said = tokenizer.decode(answer, skip_special_tokens=True).rstrip("\ufffd")  # an unfinished character is not sent
    return said, len(ids)


def test_a_prompt_with_ends_of_rows(load_seeing: Callable[..., Engine], seeing: Callable[[str], Path]) -> None:
    """Mistral 3's. Source: `PixtralProcessor.replace_image_token`, which wants torchvision to run."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(seeing("mistral3"))
    height, width = seeing_models.processor("mistral3")(images=PICTURES[0])["pixel_values"].shape[2:]
    mark = seeing_models.MARKS[0]
    rows = [[mark] * (width // 8) + ["[IMG_BREAK]"] for _ in range(height // 8)]
    rows[-1][-1] = "[IMG_END]"
    shown = "".join(mark for row in rows for mark in row)
    text = f"[user] see <|vision_start|>{shown}<|vision_end|> and\n[assistant]"
    wanted = tokenizer(text, add_special_tokens=False)["input_ids"]
    talk = Conversation()
    talk.say("user", "see " + talk.shown(SentImage(base64_of(PICTURES[0]), "messages[0]")) + " and")
    ids, _ = load_seeing("mistral3").chat(ChatRequest(talk.messages, images=talk.images))
    assert list(ids) == list(wanted) and ids.count(seeing_models.ROW_END) > 1
    (placed,) = ids.images
    assert ids[placed.end - 1] == seeing_models.IMAGE_END and ids[placed.start] == IMAGE


def test_a_prompt_with_paragraphs_around_images(
    load_seeing: Callable[..., Engine], seeing: Callable[[str], Path]
) -> None:
    """Gemma 3's, whose template writes only where an image begins. Source: `Gemma3Processor.full_image_sequence`."""
    tokenizer = transformers.PreTrainedTokenizerFast.from_pretrained(seeing("gemma3"))
    image, _, begin, end, *_ = seeing_models.MARKS
    shown = f"\n\n{begin}{image * 16}{end}\n\n"
    text = f"[user] see {shown}{shown} and\n[assistant]"
    wanted = tokenizer(text, add_special_tokens=False)["input_ids"]
    talk = Conversation()
    pictures = [talk.shown(SentImage(base64_of(picture), "messages[0]")) for picture in PICTURES[:2]]
    talk.say("user", "see " + "".join(pictures) + " and")
    engine = load_seeing("gemma3")
    ids, _ = engine.chat(ChatRequest(talk.messages, images=talk.images))
    assert list(ids) == list(wanted) and [placed.parts for placed in ids.images] == [16, 16]
    assert [ids[placed.start - 1] for placed in ids.images] == [seeing_models.BEGIN] * 2
    for mark in (begin, image):
        talk = Conversation()
        talk.say("user", mark + talk.shown(SentImage(base64_of(PICTURES[0]), "messages[0]")))
        with pytest.raises(RequestError, match=f"a text has {re.escape(mark)}"):
            engine.chat(ChatRequest(talk.messages, images=talk.images))


COMMON = {"model": "sees", "temperature": 0}


def openai_answer(client: httpx.Client, messages: list[dict[str, Any]], **more: Any) -> tuple[str, int]:
    body = COMMON | {"messages": messages, "max_tokens": ANSWER, "min_tokens": ANSWER} | more
    answer = client.post("/v1/chat/completions", json=body).raise_for_status().json()
    return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]


def part(piece: str | Image.Image) -> dict[str, Any]:
    if isinstance(piece, str):
        return {"type": "text", "text": piece}
    return {"type": "image_url", "image_url": {"url": url(piece), "detail": "high"}}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen3_5", "gemma3", "gemma4"])
def test_openai(load_seeing: Callable[..., Engine], seeing: Callable[[str], Path], family: str) -> None:
    with serving(load_seeing(family)) as client:
        _ask_openai(client, seeing(family), family)


def _ask_openai(client: httpx.Client, folder: Path, family: str) -> None:
    first: list[str | Image.Image] = ["what is in ", PICTURES[0], PICTURES[1], " this picture?"]
    asked = [{"role": "user", "content": [part(piece) for piece in first]}]
    assert openai_answer(client, asked) == expected(folder, ("user", first), family=family)
    said, again = "the lazy dog", ["and the quick brown ", PICTURES[2]]
    asked += [{"role": "assistant", "content": said}, {"role": "user", "content": [part(piece) for piece in again]}]
    turns = expected(folder, ("user", first), ("assistant", [said]), ("user", again), family=family)
    assert openai_answer(client, asked) == turns
    counted = client.post("/tokenize", json={"model": "sees", "messages": asked}).raise_for_status().json()
    assert counted["count"] == turns[1]


def test_anthropic_and_responses(client: httpx.Client, seeing: Callable[[str], Path]) -> None:
    text, tokens = expected(seeing("qwen3_5"), ("user", [PICTURES[1], "what is this?"]))
    source = {"type": "base64", "media_type": "image/png", "data": base64_of(PICTURES[1])}
    content = [{"type": "image", "source": source}, {"type": "text", "text": "what is this?"}]
    body = COMMON | {"max_tokens": ANSWER, "messages": [{"role": "user", "content": content}]}
    answer = client.post("/v1/messages", json=body).raise_for_status().json()
    assert text.startswith("".join(block["text"] for block in answer["content"]))
    assert answer["usage"]["input_tokens"] + answer["usage"].get("cache_read_input_tokens", 0) == tokens
    parts = [{"type": "input_image", "image_url": url(PICTURES[1])}, {"type": "input_text", "text": "what is this?"}]
    body = COMMON | {"max_output_tokens": ANSWER, "input": [{"role": "user", "content": parts}]}
    answer = client.post("/v1/responses", json=body).raise_for_status().json()
    assert text.startswith(answer["output"][-1]["content"][0]["text"]) and answer["usage"]["input_tokens"] == tokens
    followed = COMMON | {"max_output_tokens": 2, "input": "and now?", "previous_response_id": answer["id"]}
    answer = client.post("/v1/responses", json=followed).raise_for_status().json()
    assert answer["usage"]["input_tokens"] > tokens


def test_a_tools_result_may_be_an_image(client: httpx.Client) -> None:
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "look"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [part("seen: "), part(PICTURES[0])]},
    ]
    _, tokens = openai_answer(client, messages)
    assert tokens > 15


REFUSED = {
    "another's": (
        [{"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}],
        "fetches no images (image_hosts)",
    ),
    "a file": ([{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}], "or an http(s) URL"),
    "broken": (
        [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}],
        "no image of a known format",
    ),
    "its mark in a text": ([part(PICTURES[0]), part("<|image_pad|>")], "a text has <|image_pad|>"),
    "too many": ([part(scene(seed, 64, 64)) for seed in range(3)], "one request may have 160"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(client: httpx.Client, name: str) -> None:
    content, said = REFUSED[name]
    answer = client.post("/v1/chat/completions", json=COMMON | {"messages": [{"role": "user", "content": content}]})
    assert answer.status_code == 400 and said in answer.json()["error"]["message"], answer.text
    assert answer.json()["error"]["param"].startswith("messages")


def test_only_users_and_tools_show_images(client: httpx.Client) -> None:
    content = [part(PICTURES[0])]
    messages = [{"role": "system", "content": content}, {"role": "user", "content": "hello"}]
    answer = client.post("/v1/chat/completions", json=COMMON | {"messages": messages})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "messages[0].content[0].image_url"


def test_a_model_of_text_alone_refuses_images(load_seeing: Callable[..., Engine]) -> None:
    model = TextModel("blind", load_seeing(image_tokens=0), step_deadline_s=60)
    with served(http_app(model)) as address, httpx.Client(base_url=address, timeout=120, trust_env=False) as client:
        body = {"model": "blind", "messages": [{"role": "user", "content": [part(PICTURES[0])]}]}
        answer = client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400 and "reads only text, not images" in answer.json()["error"]["message"]
        assert answer.json()["error"]["param"] == "messages[0].content[0].image_url.url"
