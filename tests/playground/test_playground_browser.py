"""The playground in a headless Chromium, with the demo models and a cell behind it: `make test-playground`.

PLAYGROUND_SCREENSHOTS=FOLDER also saves what the documentation shows there.
"""

import io
import json
import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tests.http_servers import StandInServer
from tests.llm.text import chat_models
from tests.playground.page import LanguageModel, Start

pytest.importorskip("gradio", reason="make test-playground installs it")
playwright = pytest.importorskip("playwright.sync_api", reason="make test-playground installs it")
CHROMIUM = shutil.which("chromium")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),  # a busy machine takes minutes to start the four applications
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium: apt-get install chromium"),
]
SMALL = {"max_batch_size": 4, "max_step_tokens": 8, "max_model_len": 64}
TIMEOUT_MS = 120_000
SCREENSHOTS = os.environ.get("PLAYGROUND_SCREENSHOTS")
OBSERVER = """() => {
    window.captions = new Set();
    const look = () => document.querySelectorAll(".pictures .caption-label").forEach(
        (each) => window.captions.add(each.textContent.trim()));
    new MutationObserver(look).observe(document.body, {subtree: true, childList: true, characterData: true});
}"""


@pytest.fixture(scope="module")
def service_url(serve_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service with three applications, under one address."""
    from ray import serve

    import apps.cell
    import apps.llm
    import apps.stable_diffusion
    from ray_configs.cell import CellConfig
    from ray_configs.llm import LLMConfig
    from ray_configs.stable_diffusion import StableDiffusionConfig

    cell = CellConfig(name="test", state_uri=str(tmp_path_factory.mktemp("cell")))
    serve.run(apps.llm.build(LLMConfig(max_batch_size=4, max_step_tokens=64)), name="llm", route_prefix="/")
    serve.run(apps.stable_diffusion.build(StableDiffusionConfig.demo()), name="pictures", route_prefix="/pictures")
    serve.run(apps.cell.build(cell), name="cell", route_prefix="/cell")
    random = chat_models.save(tmp_path_factory.mktemp("tools"), "hermes")
    sizes = {"dtype": "float32", "max_batch_size": 4, "max_step_tokens": 64, "pages": 128, "page_size": 16}
    tools = LLMConfig(model=str(random), max_model_len=512, **sizes)
    serve.run(apps.llm.build(tools), name="tools", route_prefix="/tools")
    yield serve_url
    for name in ("llm", "pictures", "cell", "tools"):
        serve.delete(name)


@pytest.fixture(scope="module")
def address(start: Start, service_url: str) -> str:
    return start(service_url)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright.expect.set_options(timeout=TIMEOUT_MS)
    with playwright.sync_playwright() as play:
        browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The open page; asks nobody but its own server."""
    context = browser.new_context(viewport={"width": 1200, "height": 860})
    context.set_default_timeout(TIMEOUT_MS)
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    yield page
    context.close()
    assert {url for url in asked if not url.startswith((address, "data:", "blob:"))} == set()


def field(page: Any, label: str) -> Any:
    """The field of the page that is open: each page has its own."""
    return page.get_by_label(label).filter(visible=True).first


def message(page: Any) -> Any:
    """Not by its label, which changes, and which bubbles of the chat have too."""
    return page.locator(".message textarea").filter(visible=True)


def press(page: Any, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).filter(visible=True).click()


def go_to(page: Any, tab: str) -> None:
    page.get_by_role("tab", name=tab).click()


def status(page: Any) -> Any:
    return page.locator(".status").filter(visible=True).first


def ask(page: Any, question: str) -> None:
    playwright.expect(field(page, "Model")).not_to_have_value("")
    message(page).fill(question)
    press(page, "Send")


def show(page: Any, file: Path) -> None:
    page.locator(".shown input[type=file]").filter(visible=False).first.set_input_files(file)
    playwright.expect(page.locator(".shown img").filter(visible=True).first).to_be_visible()


def shoot(page: Any, name: str) -> None:
    if SCREENSHOTS is None:
        return
    image = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
    image.quantize(128).save(Path(SCREENSHOTS, f"playground-{name}.png"), optimize=True)


def test_a_streamed_answer_with_its_speed_and_probabilities(page: Any) -> None:
    field(page, "Temperature").fill("0")
    field(page, "Token probabilities").check()
    ask(page, "How many days are in a week?")
    playwright.expect(page.get_by_test_id("bot").last).to_contain_text("There are seven days in a week.")
    playwright.expect(status(page)).to_contain_text("ended by stop")
    assert all(word in status(page).inner_text() for word in ("TTFT", "tokens/s"))
    token = page.locator(".token", has_text="seven").first
    likeliest = token.locator(".likeliest")
    playwright.expect(likeliest).to_be_hidden()
    token.hover()
    playwright.expect(likeliest).to_be_visible()
    assert likeliest.locator("tr").count() == 5
    assert "%" in likeliest.locator(".chosen").inner_text()
    shoot(page, "chat")
    press(page, "New chat")
    playwright.expect(page.get_by_test_id("bot")).to_have_count(0)


def test_a_picture_goes_with_a_question(browser: Any, start: Start, tmp_path: Path) -> None:
    """Source: `image_url` of OpenAI's API reference, chat completions."""
    file = tmp_path / "scene.png"
    Image.new("RGB", (8, 8), (200, 40, 30)).save(file)
    bodies: list[bytes] = []

    class RecordedModel(LanguageModel):
        def body(self) -> bytes:
            bodies.append(super().body())
            return bodies[-1]

    with browser.new_page() as page, StandInServer(RecordedModel) as server:
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(start(server.url))
        show(page, file)
        ask(page, "What is this?")
        playwright.expect(page.locator("strong", has_text="seven")).to_be_visible()
        playwright.expect(page.get_by_test_id("user").locator("img").first).to_be_visible()
        playwright.expect(page.locator(".shown img").filter(visible=True)).to_have_count(0)
        ask(page, "Sure?")
        playwright.expect(page.get_by_test_id("bot")).to_have_count(4)  # two answers, and what was thought before each
    first, second = (json.loads(body)["messages"] for body in bodies)
    (shown, said) = first[0]["content"]
    assert shown["image_url"]["url"].startswith("data:image/png;base64,") and said == {
        "type": "text",
        "text": "What is this?",
    }
    assert second[0] == first[0] and second[-1] == {"role": "user", "content": "Sure?"}


def test_a_model_that_sees_nothing_says_so_and_the_picture_stays(page: Any, tmp_path: Path) -> None:
    file = tmp_path / "scene.png"
    Image.new("RGB", (8, 8)).save(file)
    show(page, file)
    ask(page, "What is this?")
    playwright.expect(status(page).locator(".problem")).to_contain_text("answered 400")
    assert message(page).input_value() == "What is this?"
    playwright.expect(page.locator(".shown img").filter(visible=True).first).to_be_visible()


def test_a_tool_is_called_and_its_result_sent(page: Any) -> None:
    """Of a random model: the call is enforced, and its arguments follow the schema."""
    go_to(page, "Chat /tools")
    press(page, "Tools ▼")
    press(page, "Example: a weather tool")
    playwright.expect(page.locator(".tools").filter(visible=True)).to_contain_text("get_weather")
    field(page, "Tool choice").click()
    page.get_by_role("option", name="required").click()
    ask(page, "What is the weather in Paris?")
    playwright.expect(page.get_by_text("Call of get_weather")).to_be_visible()
    playwright.expect(page.locator("code", has_text='"city"')).to_be_visible()
    field(page, "Max tokens").fill("8")
    field(page, "Result of get_weather").fill('{"sky": "clear"}')
    press(page, "Send")
    playwright.expect(page.get_by_text("Result of get_weather", exact=True)).to_be_visible()
    playwright.expect(status(page)).to_contain_text("ended by")


def test_a_refused_request_says_why_and_keeps_the_question(page: Any) -> None:
    ask(page, "word " * 5000)
    playwright.expect(status(page).locator(".problem")).to_contain_text("answered 400")
    assert message(page).input_value() == "word " * 5000


def test_pictures_with_previews_seeds_and_image_to_image(page: Any) -> None:
    go_to(page, "Pictures")
    field(page, "Prompt").fill("a red circle on a blue background")
    press(page, "Steps, guidance, scheduler ▼")
    field(page, "Steps").fill("60")
    field(page, "Seed").fill("7")
    page.evaluate(OBSERVER)
    press(page, "Draw")
    playwright.expect(status(page)).to_contain_text("4 of 4 pictures")
    captions = page.locator(".pictures .caption-label")
    assert [caption.strip() for caption in captions.all_text_contents()] == [f"seed {seed}" for seed in range(7, 11)]
    assert any(caption.startswith("preview, step") for caption in page.evaluate("[...window.captions]"))
    shoot(page, "pictures")
    page.locator(".pictures .thumbnail-item").first.click()
    press(page, "Begin image to image with the selected picture")
    press(page, "Image to image ▼")
    playwright.expect(page.locator(".begin img").filter(visible=True).first).to_be_visible()
    field(page, "Prompt").fill("a green star on a blue background")
    press(page, "Draw")
    playwright.expect(status(page)).to_contain_text("0 of 4 pictures")
    playwright.expect(status(page)).to_contain_text("4 of 4 pictures")


def test_a_model_is_published_used_and_unpublished(page: Any) -> None:
    go_to(page, "Cell /cell")
    playwright.expect(page.locator(".cell")).to_contain_text("/sax/test: on CPUs")
    press(page, "Unpublish")
    playwright.expect(status(page).locator(".problem")).to_contain_text("answered 400")
    page.locator(".name textarea, .name input").fill("demo")
    field(page, "Overrides").fill(json.dumps(SMALL))
    press(page, "Publish")
    playwright.expect(status(page)).to_contain_text("/sax/test/demo is published")
    playwright.expect(page.locator(".slice.running")).to_contain_text("/sax/test/demo")
    shoot(page, "cell")
    go_to(page, "Chat /cell")
    playwright.expect(field(page, "Model")).to_have_value("/sax/test/demo")
    ask(page, "How many days are in a week?")
    playwright.expect(status(page)).to_contain_text("ended by")
    go_to(page, "Cell /cell")
    press(page, "Unpublish")
    playwright.expect(page.locator(".cell")).to_contain_text("Nothing is published.")


def test_thinking_is_folded_away_and_a_service_that_goes_away(browser: Any, start: Start) -> None:
    with browser.new_page() as page:
        with StandInServer(LanguageModel) as server:
            page.set_default_timeout(TIMEOUT_MS)
            page.goto(start(server.url))
            ask(page, "How many days?")
            playwright.expect(page.locator("strong", has_text="seven")).to_be_visible()
            thought = page.get_by_text("Let me see.")
            playwright.expect(thought).to_be_hidden()
            page.get_by_label("chatbot conversation").get_by_text("Thinking").click()
            playwright.expect(thought).to_be_visible()
        message(page).fill("Hello?")
        press(page, "Send")
        playwright.expect(status(page).locator(".problem")).to_contain_text("Is the service running?")
        assert message(page).input_value() == "Hello?"


def test_enter_sends_and_shift_enter_breaks_the_line(browser: Any, start: Start) -> None:
    with browser.new_page() as page, StandInServer(LanguageModel) as server:
        page.set_default_timeout(TIMEOUT_MS)
        page.goto(start(server.url))
        playwright.expect(field(page, "Model")).not_to_have_value("")
        message(page).fill("How many days?")
        message(page).press("Shift+Enter")
        message(page).press_sequentially("In a week.")
        assert message(page).input_value() == "How many days?\nIn a week."
        message(page).press("Enter")
        playwright.expect(page.locator("strong", has_text="seven")).to_be_visible()
        playwright.expect(page.get_by_test_id("user")).to_have_text(re.compile(r"How many days\?\s*In a week\."))
        playwright.expect(message(page)).to_have_value("")
