"""Claude Code and Codex as npm has them, against the server: each copies a note with its shell, and says so.

The model is a script (`scripted`), the rest is real: the agents' own tools and prompts, of 17,000 and 37,000 tokens
here, their streams and shells, and a conversation that goes on in a second run.
"""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.llm.client_libraries import scripted
from tests.llm.client_libraries.conftest import ENVIRONMENT, NAME, served

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
AGENTS = ENVIRONMENT / "agents" / "node_modules" / ".bin"
SIZES = {"dtype": "float32", "max_batch_size": 4, "max_step_tokens": 512, "pages": 3000, "page_size": 64}
NOTE = "buy milk\n"


@pytest.fixture(scope="module")
def agent_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the scripted model is served."""
    if not (AGENTS / "claude").exists():
        pytest.skip("the agents are not installed: make test-clients, with npm")
    checkpoint = scripted.save(tmp_path_factory.mktemp("scripted"))
    with served(model=checkpoint, max_model_len=scripted.CONTEXT, **SIZES) as url:
        yield url


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The agent's folder, with a note in it."""
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "note.txt").write_text(NOTE)
    return folder


def run(folder: Path, agent: str, *arguments: str, **variables: str) -> str:
    """What the agent prints, in an environment with nothing of the person who runs the tests."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder.parent)} | variables
    command = [str(AGENTS / agent), *arguments]
    done = subprocess.run(
        command, env=environment, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    return done.stdout


def test_claude_code(agent_url: str, folder: Path) -> None:
    variables = {
        "ANTHROPIC_BASE_URL": agent_url,
        "ANTHROPIC_AUTH_TOKEN": "unused",
        "ANTHROPIC_MODEL": NAME,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": NAME,
        "CLAUDE_CODE_ATTRIBUTION_HEADER": "0",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    allowed = ["--allowedTools", "Bash(cat:*)", "--permission-mode", "acceptEdits", "--output-format", "json"]
    said = json.loads(run(folder, "claude", "-p", "Copy the note.", *allowed, **variables))
    assert (folder / "copy.txt").read_text() == NOTE
    assert (said["result"], said["is_error"], said["num_turns"]) == (scripted.ANSWER, False, 2)
    usage = said["usage"]
    assert usage["cache_read_input_tokens"] > 10_000  # the second turn reads the first one's pages
    later = json.loads(run(folder, "claude", "-c", "-p", "Did you?", *allowed, **variables))
    assert (later["result"], later["num_turns"]) == (scripted.ANSWER, 1)
    assert later["usage"]["cache_read_input_tokens"] > 10_000


CODEX = f"""\
model = "{NAME}"
model_provider = "podslice"

[model_providers.podslice]
name = "Podslice"
base_url = "URL/v1"
"""


def test_codex(agent_url: str, folder: Path) -> None:
    home = folder.parent / ".codex"
    home.mkdir()
    (home / "config.toml").write_text(CODEX.replace("URL", agent_url))
    options = ["--json", "--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]

    def events(*arguments: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in run(folder, "codex", "exec", *arguments).splitlines()]

    first = events(*options, "Copy the note.")
    assert (folder / "copy.txt").read_text() == NOTE
    items = [event["item"] for event in first if event["type"] == "item.completed"]
    (command,) = [item for item in items if item["type"] == "command_execution"]
    assert (command["aggregated_output"], command["exit_code"]) == (NOTE, 0)
    assert items[-1]["type"] == "agent_message" and items[-1]["text"] == scripted.ANSWER
    later = events("resume", "--last", *options, "Did you?")
    assert [event["item"]["text"] for event in later if event.get("item", {}).get("type") == "agent_message"] == [
        scripted.ANSWER
    ]
    assert later[-1]["usage"]["cached_input_tokens"] > 10_000
