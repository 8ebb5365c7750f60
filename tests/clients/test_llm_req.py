"""clients/llm_req.py against a stand-in server: the answer on stdout, or one line that says what to do."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = "llm_req.py"
WEEK = "How many days are in a week?"


@pytest.mark.parametrize("kind", ["answer", "pieces"])
@pytest.mark.parametrize("flags", [(), ("--chat",)])
def test_prints_the_answer(server, call, kind, flags):
    assert call(PROGRAM, "--url", server.url(kind), *flags, WEEK) == (0, server.ANSWER + "\n", "")


def test_sends_what_the_flags_say(server, run, call):
    url = server.url("quick")
    call(PROGRAM, "--url", url + "/v1/", WEEK)
    run(
        PROGRAM, "--url", url + "/", "--model", "other", "--max-tokens", "3", "--temperature", "0.5", "-", stdin="Hi?\n"
    )
    call(PROGRAM, "--url", url.removeprefix("http://"), "--chat", "--system", "Be brief.", WEEK)
    greedy = {"model": "tiny", "max_tokens": 128, "temperature": 0, "stream": True}
    user = {"role": "user", "content": WEEK}
    assert server.sent("quick")[-3:] == [
        greedy | {"prompt": WEEK},
        {"model": "other", "max_tokens": 3, "temperature": 0.5, "stream": True, "prompt": "Hi?\n"},
        greedy | {"messages": [{"role": "system", "content": "Be brief."}, user]},
    ]


def test_sends_a_picture(server, call, tmp_path):
    """Source: `image_url` of OpenAI's API reference, chat completions."""
    url, file = server.url("quick"), tmp_path / "scene.jpg"
    code, _, said = call(PROGRAM, "--url", url, "--image", str(file), WEEK)
    assert code == 1 and "cannot read the picture" in said and "No such file" in said
    file.write_bytes(b"pixels")
    call(PROGRAM, "--url", url, "--image", str(file), WEEK)
    picture = {"type": "image_url", "image_url": {"url": "data:image/jpeg;base64,cGl4ZWxz"}}
    asked = {"role": "user", "content": [picture, {"type": "text", "text": WEEK}]}
    assert server.sent("quick")[-1]["messages"] == [asked]


def test_streams_as_it_comes(server, start):
    process = start(PROGRAM, "--url", server.url("stall"), WEEK)
    assert process.stdout.read(5) == "Seven"  # the server is silent for 30 s from here
    assert process.poll() is None


@pytest.mark.parametrize(("name", "value"), [("PODSLICE_API_KEY", "secret\n"), ("OPENAI_API_KEY", "secret")])
def test_key_from_the_environment(server, call, monkeypatch, name, value):
    monkeypatch.setenv(name, value)
    assert call(PROGRAM, "--url", server.url("locked"), "--max-tokens", "1", WEEK) == (0, " w0\n", "")


def test_this_machine_is_asked_past_the_environments_proxy(server, call, monkeypatch):
    """Oracle: an address where no proxy listens."""
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    assert call(PROGRAM, "--url", server.url("answer"), WEEK) == (0, server.ANSWER + "\n", "")


@pytest.mark.parametrize(
    ("kind", "says", "advises"),
    [
        ("locked", "401 Unauthorized: no such key.", "--api-key or PODSLICE_API_KEY"),
        ("lost", "404 Not Found: no model 'tiny'.", "/v1/models` lists the models"),
        ("bad", "400 Bad Request: the prompt has 9000 tokens. The model takes 4096.", "Change the request"),
        ("detail", "field required", "Change the request"),
        ("busy", "503 Service Unavailable: all 4 slots are taken.", "try again in 7 s"),
        ("sick", "500 Internal Server Error", "log"),
        ("moved", "307", "http://elsewhere:1"),
        ("page", "did not answer with a stream", "OpenAI-compatible"),
        ("html", "is not a list of models", "OpenAI-compatible"),
        ("empty", "serves no model yet", "Publish one"),
    ],
)
def test_refusals_are_one_line(server, call, kind, says, advises):
    code, out, err = call(PROGRAM, "--url", server.url(kind), WEEK)
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert err.startswith("error: ")
    assert says in err
    assert advises in err


def test_a_refusal_is_exit_code_1(server, run):
    """Of the process itself."""
    code, out, err = run(PROGRAM, "--url", server.url("busy"), WEEK)
    assert (code, out, err.count("\n")) == (1, "", 1)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("midway", "the server failed while answering: slice lost: host 2 is gone. See"),
        ("named", "the server failed while answering: worker died. See"),
        ("broken", "the connection to http://127.0.0.1"),
        ("short", "the stream ended before the answer did."),
        ("stall", "no word from http://127.0.0.1"),
    ],
)
def test_an_answer_that_ends_badly(server, call, kind, says):
    code, out, err = call(PROGRAM, "--url", server.url(kind), "--timeout", "0.5", WEEK)
    assert (code, out, err.count("\n")) == (1, "Seven\n", 1)  # what came, then its line ended
    assert says in err


def test_no_server(call, closed_port):
    code, out, err = call(PROGRAM, "--url", f"localhost:{closed_port}", WEEK)
    assert (code, out) == (1, "")
    assert err == (
        f"error: cannot reach http://localhost:{closed_port}: connection refused. "
        "Is the server running? Start it with `make serve`.\n"
    )


def test_no_such_host(call):
    code, _, err = call(PROGRAM, "--url", "http://nobody.invalid", WEEK)
    assert (code, err.count("\n")) == (1, 1)
    assert "cannot reach http://nobody.invalid" in err
    assert "Check --url" in err


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ([""], 1, "the prompt is empty"),
        ([os.fsdecode(b"caf\xe9")], 1, "not UTF-8"),
        ([WEEK, "--api-key", "k\u00e9y"], 1, "API key"),
        ([WEEK, "--system", "Be brief."], 2, "add --chat"),
        ([WEEK, "--max-tokens", "0"], 2, "1 or more"),
        ([WEEK, "--temperature", "nan"], 2, "0 or more"),
        ([WEEK, "--url", "ftp://x"], 2, "write it like http://localhost:8000"),
        ([WEEK, "--url", "http://x:port"], 2, "write it like http://localhost:8000"),
        ([], 2, "prompt"),
    ],
)
def test_bad_input(call, arguments, code, says):
    returned, out, err = call(PROGRAM, *arguments)
    assert (returned, out) == (code, "")
    assert says in err


def test_interrupt_is_quiet(server, start):
    process = start(PROGRAM, "--url", server.url("stall"), WEEK)
    process.stdout.read(5)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=240)
    assert (process.returncode, out, err) == (130, "\n", "")


def test_reader_that_leaves_is_quiet(server, start):
    process = start(PROGRAM, "--url", server.url("steady"), "--max-tokens", "40", WEEK)
    process.stdout.read(3)
    process.stdout.close()
    assert process.wait(240) == 141
    assert process.stderr.read() == ""


def test_full_disk(server, run):
    with open("/dev/full", "w") as full:
        code, _, err = run(PROGRAM, "--url", server.url("quick"), WEEK, stdout=full)
    assert (code, err) == (1, "error: cannot write the answer: No space left on device. Check where stdout goes.\n")


def test_terminal_without_the_characters(server, run):
    code, out, err = run(PROGRAM, "--url", server.url("answer"), WEEK, env={"PYTHONIOENCODING": "ascii"})
    assert (code, err) == (0, "")
    assert out.startswith("Seven days.?Jours ?")


def test_nothing_on_stdin(run):
    assert run(PROGRAM, "-", stdin="\n")[::2] == (
        1,
        "error: the prompt is empty. Give a question, or - to read one from stdin.\n",
    )
    shell = ["bash", "-c", '"$0" "$1" - <&-', sys.executable, str(Path(__file__).parents[2] / "clients" / PROGRAM)]
    closed = subprocess.run(shell, capture_output=True, text=True, timeout=120)
    assert (closed.returncode, closed.stdout, closed.stderr.count("\n")) == (1, "", 1)
    assert "cannot read stdin" in closed.stderr
