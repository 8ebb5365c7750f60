"""Images through a router's words: the same answers as beside the engine, and pages by the same names."""

from collections.abc import Callable, Iterator

import pytest

from apps.llm.api import ANYONE
from apps.llm.chat.conversation import ChatRequest, Conversation
from apps.llm.chat.images import SentImage
from apps.llm.page_names import page_names, page_root
from apps.llm.router.wire.served import ServedEngine
from apps.llm.text import Engine, SamplingParams
from apps.llm.text.requests.maker import Owner
from tests.llm.engine.asking import ids, read
from tests.llm.images.seeing_models import scene
from tests.llm.images.test_images_http import base64_of
from tests.llm.router.wire.asking import Connected

GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


@pytest.fixture(scope="module")
def seeing_engine(load_seeing: Callable[..., Engine]) -> Engine:
    return load_seeing()


@pytest.fixture(scope="module")
def words(seeing_engine: Engine) -> Iterator[Engine]:
    served = ServedEngine(seeing_engine.tokens, "127.0.0.1", "replica-0")
    connected = Connected(served.endpoint)
    yield Engine.over(seeing_engine.config, connected.engine)
    connected.engine.shutdown()
    served.close()


def chat(seed: int) -> ChatRequest:
    talk = Conversation()
    talk.say("user", "what is in " + talk.shown(SentImage(base64_of(scene(seed, 64, 40)), "messages[0]")) + "?")
    return ChatRequest(talk.messages, images=talk.images)


@pytest.mark.slow
def test_the_same_answers(words: Engine, seeing_engine: Engine) -> None:
    for seed in (70, 71):
        prompt, turn = words.chat(chat(seed))
        there = ids(read(words.submit(prompt, turn.constrained(GREEDY)))[0])
        here = ids(read(seeing_engine.submit(seeing_engine.chat(chat(seed))[0], GREEDY))[0])
        assert there == here


def test_a_routers_names_are_the_engines(words: Engine, seeing_engine: Engine) -> None:
    """Of every page, also those that an image begins before, in or after."""
    prompts = [seeing_engine.chat(chat(seed))[0] for seed in (72, 73)]
    sizes = seeing_engine.capabilities
    root = page_root(sizes.page_root, b"", ("", ""))
    first, second = (page_names(root, prompt, sizes.page_size, prompt.images) for prompt in prompts)
    assert prompts[0] == prompts[1] and len(first) > 2
    image = prompts[0].images[0]
    assert [one == other for one, other in zip(first, second)] == [
        (number + 1) * sizes.page_size <= image.start for number in range(len(first))
    ]
    made = seeing_engine._requests.answers(prompts[0], GREEDY, Owner(ANYONE, None, ("", ""), ""), ())
    member, _ = seeing_engine.tokens._member(made.requests[0], None, None, root, None)
    assert member.names(len(first), sizes.page_size) == first
