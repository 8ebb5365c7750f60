"""What readers see: no link that leads nowhere, and drawn or generated pages as their scripts make them."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
from jsonschema import Draft202012Validator
from pydantic import BaseModel

from apps.llm.engine.model.families.hugging_face import FAMILIES
from podslice import commands
from tools import architecture_picture, config_page, http_page

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    page
    for place in ("*.md", "docs/**/*.md", "apps/**/*.md", "tests/**/*.md", "tools/**/*.md")
    for page in ROOT.glob(place)
)
LINK = re.compile(r"""\]\(([^)\s]+)\)|src="([^"]+)\"""")


def prose(page: Path) -> str:
    """The page without its fenced code, in which a # is no heading."""
    return re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    """Names of the headings, as GitHub and mkdocs make them of plain words."""
    headings = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"\s+", "-", re.sub(r"[^\w\s-]", "", heading.lower()).strip()) for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for markdown, html in LINK.findall(prose(page)):
        link = markdown or html
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{page.relative_to(ROOT)} links to {path}, which does not exist"
        if anchor:
            assert anchor in anchors(target), f"{page.relative_to(ROOT)} links to {link}; there is no such heading"


def test_the_architecture_is_drawn_by_its_script() -> None:
    assert architecture_picture.PATH.read_text() == architecture_picture.picture(), (
        "run python -m tools.architecture_picture"
    )


def test_the_configs_are_those_of_the_code() -> None:
    assert config_page.PATH.read_text() == config_page.page(), "run python -m tools.config_page"


def test_the_http_api_is_that_of_the_code() -> None:
    assert http_page.PATH.read_text() == http_page.page(), "run python -m tools.http_page"


ROUTES = [
    pytest.param(method, path, route, id=f"{title}: {method} {path}")
    for title, schema in http_page.schemas().items()
    for method, path, route in http_page.routes(schema)
]


@pytest.mark.parametrize(("method", "path", "route"), ROUTES)
def test_every_call_says_what_it_does_and_takes(method: str, path: str, route: dict[str, Any]) -> None:
    assert route.get("description")
    takes = method in ("POST", "PUT") and not path.endswith(("/interrupt", "/cancel", "/refresh-loras"))
    assert bool(http_page.bodies(route)) == takes
    for body in http_page.bodies(route):
        Draft202012Validator.check_schema(body)
        assert body["properties"]
    assert "$ref" not in json.dumps(http_page.bodies(route))


@pytest.mark.parametrize("model", [model for models in config_page.SECTIONS.values() for model in models])
def test_no_field_is_left_out(model: type[BaseModel]) -> None:
    assert config_page.fields(model).keys() == model.model_fields.keys() - {"kind"}


COMMANDS = typer.main.get_command(commands.app).commands
COMMAND = re.compile(r"^ {4}(?:\$ )?(?:\S*/)?podslice (.*)$|`podslice ([^`]*)`", re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_shown_commands_and_their_options_exist(page: Path) -> None:
    for shown, named in COMMAND.findall(page.read_text()):
        words = shlex.split(re.split(r" [|>]", shown or named)[0], comments=True)
        if not words or words[0] == "COMMAND":
            continue
        assert words[0] in COMMANDS, f"there is no podslice {words[0]}"
        options = {option for parameter in COMMANDS[words[0]].params for option in parameter.opts}
        assert {word.partition("=")[0] for word in words if word.startswith("-")} <= options, shown or named


def test_the_table_of_models_has_every_family_and_no_other() -> None:
    page = (ROOT / "docs/serve/language-models.md").read_text()
    table = page.split("| `model_type` |", 1)[1].split("\n\n", 1)[0]
    families = [line.split("|")[1] for line in table.splitlines()[2:]]
    assert sorted(re.findall(r"`(\w+)`", " ".join(families))) == sorted(FAMILIES)


def test_each_line_on_what_callers_can_do_to_another_has_its_tests() -> None:
    promises = (ROOT / "SECURITY.md").read_text().partition("## What one caller can")[2]
    promises = promises.partition("### What a caller can still do")[0]
    lines = re.findall(r"^- (?:.+\n)(?:  .+\n)*", promises, re.MULTILINE)
    assert len(lines) > 30
    for line in lines:
        named = re.findall(r"`(tests/[\w/]+\.py)::(test_\w+)`", line)
        assert named, line
        for path, test in named:
            assert re.search(rf"^(async )?def {test}\(", (ROOT / path).read_text(), re.MULTILINE), f"{path}::{test}"
