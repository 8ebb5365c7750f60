"""clients/bench.py against a stand-in server whose answers have known sizes, times and failures."""

import json
import os
import pty
import random
import re
import signal
import time

import pytest

PROGRAM = "bench.py"


@pytest.fixture
def measure(server, run, tmp_path):
    """Runs the benchmark against a kind of stand-in: (exit code, stdout, stderr, what --json wrote)."""

    def measure_kind(kind, *flags, **options):
        result = tmp_path / "result.json"
        arguments = ["--url", server.url(kind), "--warmup", "0", "--json", str(result), *flags]
        code, out, err = run(PROGRAM, *arguments, **options)
        return code, out, err, json.loads(result.read_text()) if result.exists() else None

    return measure_kind


def rows(report):
    return [row for level in report["levels"] for repeat in level["repeats"] for row in repeat["rows"]]


def shown(out, title):
    """The cells of a line of the table."""
    lines = (re.split(r"\s{2,}", line.strip()) for line in out.splitlines())
    return next(cells for label, *cells in lines if label == title)


def test_times_and_counts(server, measure):
    flags = [
        "--concurrency",
        "1,2",
        "--requests",
        "4",
        "--prompt-tokens",
        "3:9",
        "--output-tokens",
        "6",
        "--repeat",
        "2",
        "--ignore-eos",
    ]
    code, out, err, report = measure("steady", *flags, "--pid", str(os.getpid()))
    assert code == 0
    assert [(level["concurrency"], len(level["repeats"])) for level in report["levels"]] == [(1, 2), (2, 2)]
    assert len(rows(report)) == 16
    for row in rows(report):
        assert (row["output_tokens"], row["chunks"], row["max_tokens"], row["finish_reason"]) == (6, 6, 6, "length")
        assert (row["error"], row["message"], row["cached_tokens"]) == (None, None, None)
        assert 1e3 * server.FIRST_TOKEN_S - 1 <= row["ttft_ms"] < 1500
        assert 1e3 * server.TOKEN_S - 4 <= row["tpot_ms"] <= row["max_gap_ms"] < 500
        assert row["e2e_ms"] == pytest.approx(row["ttft_ms"] + 5 * row["tpot_ms"])
    for level in report["levels"]:
        for repeat in level["repeats"]:
            sent = sum(row["prompt_tokens"] for row in repeat["rows"])
            assert repeat["requests_per_s"] * repeat["wall_s"] == pytest.approx(4)
            assert repeat["output_tokens_per_s"] * repeat["wall_s"] == pytest.approx(24)
            assert repeat["input_tokens_per_s"] * repeat["wall_s"] == pytest.approx(sent)
            assert repeat["ttft_ms_p50"] <= repeat["ttft_ms_p95"] <= repeat["ttft_ms_p99"]
            assert 0 < repeat["client_cpu"] < 1
            assert repeat["server_peak_rss_mib"] > 10
        walls = sorted(repeat["wall_s"] for repeat in level["repeats"])
        assert level["medians"]["wall_s"] == pytest.approx(sum(walls) / 2)
    assert report["levels"][0]["medians"]["wall_s"] > report["levels"][1]["medians"]["wall_s"]
    assert server.most_running["steady"] == 2
    assert len(server.ports["steady"]) == 2 * 1 + 2 * 2  # a run keeps its connections
    assert report["options"]["model"] == "tiny"
    assert "api_key" not in report["options"]

    assert "medians of 2 repeats" in out
    assert shown(out, "requests in flight") == ["1", "2"]
    assert (shown(out, "requests"), shown(out, "errors")) == (["8", "8"], ["0", "0"])
    assert float(shown(out, "TTFT ms p50")[0]) == pytest.approx(report["levels"][0]["medians"]["ttft_ms_p50"], abs=0.6)
    assert err.splitlines()[-1].startswith("level 2, repeat 2/2: 4/4 requests, 0 errors")


def test_synthetic_work(server, measure):
    flags = [
        "--concurrency",
        "4,8",
        "--requests",
        "8",
        "--prompt-tokens",
        "20:40",
        "--output-tokens",
        "1:4",
        "--vocab-size",
        "500",
        "--warmup",
        "2",
    ]
    for _ in range(2):
        assert measure("quick-ids", *flags, "--seed", "5")[0] == 0
    bodies = server.sent("quick-ids")
    assert len(bodies) == 2 * (2 + 8 + 8)
    assert sorted(map(str, bodies[:18])) == sorted(map(str, bodies[18:]))  # the seed decides
    first, second = bodies[2:10], bodies[10:18]
    sizes = sorted((len(body["prompt"]), body["max_tokens"]) for body in first)
    assert sizes == sorted((len(body["prompt"]), body["max_tokens"]) for body in second)  # equal work at each level
    assert not {str(body["prompt"]) for body in first} & {str(body["prompt"]) for body in second}  # no cache helps
    assert all(20 <= size <= 40 and 1 <= tokens <= 4 for size, tokens in sizes)
    assert all(50 <= token < 500 for body in first for token in body["prompt"])
    fixed = {"model": "tiny", "temperature": 0, "stream": True, "stream_options": {"include_usage": True}}
    assert fixed.items() <= first[0].items()
    assert "ignore_eos" not in first[0]


def test_rate(measure):
    code, out, _, report = measure(
        "quick", *["--rate", "40,400", "--requests", "12", "--output-tokens", "2", "--prompt", "text"]
    )
    assert code == 0
    assert shown(out, "requests/s sent") == ["40/s", "400/s"]
    gaps, due = random.Random(0), 0.0
    for row in sorted(report["levels"][0]["repeats"][0]["rows"], key=lambda row: row["id"]):
        assert row["sent_s"] == pytest.approx(due + row["late_ms"] / 1e3, abs=1e-3)
        assert 0 <= row["late_ms"] < 500
        due += gaps.expovariate(40)


def test_trace(server, measure, tmp_path):
    trace = tmp_path / "trace.json"
    items = [{"id": f"r{number}", "ids": [5] * 9, "text": "Hi there", "max_tokens": number} for number in (3, 4, 5)]
    trace.write_text(json.dumps(items))
    code, out, _, report = measure("early-trace", "--trace", str(trace), "--concurrency", "1", "--requests", "2")
    assert (code, server.sent("early-trace")[0]["prompt"]) == (0, [5] * 9)
    assert [(row["id"], row["prompt_tokens"], row["output_tokens"]) for row in rows(report)] == [
        ("r3", 9, 1),
        ("r4", 9, 2),
    ]
    assert [row["tpot_ms"] is None for row in rows(report)] == [True, False]  # one token has no time between tokens
    assert "2 of 2 answers ended before their max_tokens" in out
    measure("quick-trace", "--trace", str(trace), "--concurrency", "1", "--prompt", "text", "--ignore-eos")
    sent = server.sent("quick-trace")
    assert [(body["prompt"], body["max_tokens"], body["ignore_eos"]) for body in sent] == [
        ("Hi there", tokens, True) for tokens in (3, 4, 5)
    ]


def test_jsonl(server, measure, tmp_path):
    path = tmp_path / "requests.jsonl"
    messages = [{"role": "user", "content": "Hi\u2028you"}]
    path.write_text(
        json.dumps({"messages": messages, "max_tokens": 5, "model": "other"}, ensure_ascii=False)
        + '\n\n{"prompt": "Hi", "temperature": 0.7, "stream": false}\n',
        encoding="utf-8",
    )
    code, _, _, report = measure("steady-jsonl", "--jsonl", str(path), "--concurrency", "1", "--model", "mine")
    assert code == 0
    chat, text = server.sent("steady-jsonl")
    assert (chat["messages"], chat["model"], chat["temperature"]) == (messages, "other", 0)
    assert (text["prompt"], text["model"], text["temperature"], text["stream"]) == ("Hi", "mine", 0.7, True)
    assert [(row["id"], row["output_tokens"], row["chunks"]) for row in rows(report)] == [(1, 5, 5), (3, 16, 16)]
    assert rows(report)[0]["ttft_ms"] > 1e3 * server.FIRST_TOKEN_S - 1  # the role, which came at once, is no token


@pytest.mark.parametrize(("kind", "note"), [("nousage", None), ("pieces", None), ("cached", "6 of 8 input tokens")])
def test_counts_without_usage_in_pieces_and_cached(server, measure, kind, note):
    flags = ["--concurrency", "2", "--requests", "2", "--output-tokens", "7", "--prompt-tokens", "4"]
    code, out, _, report = measure(kind, *flags)
    assert code == 0
    tokens = len(server.ANSWER) if kind == "pieces" else 7
    assert [(row["prompt_tokens"], row["output_tokens"]) for row in rows(report)] == [(4, tokens)] * 2
    assert note is None or f"level 2: {note} came from a prefix cache" in out


def test_errors_are_counted(measure):
    code, out, _, report = measure("third", *["--concurrency", "3", "--requests", "9", "--output-tokens", "2"])
    assert code == 0
    repeat = report["levels"][0]["repeats"][0]
    assert (repeat["requests"], repeat["errors"]["HTTP 503"]["count"]) == (9, 3)
    assert repeat["requests_per_s"] * repeat["wall_s"] == pytest.approx(6)
    assert shown(out, "errors") == ["3"]
    assert "level 3: 3 x HTTP 503; first: request 2: all 4 slots are taken" in out


def test_every_request_fails(measure, tmp_path):
    expected = {
        "HTTP 503": (["busy"] * 3, "request 1: all 4 slots are taken"),
        "error in the stream": (["midway", "named"], "request 4: slice lost: host 2 is gone"),
        "broken stream": (["short", "broken"], "request 6: the stream ended after 2 chunks, before the answer did"),
        "timeout": (["stall"], "request 8: no whole answer within 0.4 s"),
        "no stream": (["page"], "request 9: the answer is text/html, not text/event-stream"),
        "HTTP 404": (["lost"], "request 10: no model 'tiny'"),
    }
    path = tmp_path / "requests.jsonl"
    kinds = [kind for kinds, _ in expected.values() for kind in kinds]
    path.write_text("\n".join(json.dumps({"prompt": "Hi", "max_tokens": 3, "model": kind}) for kind in kinds))
    code, out, err, report = measure("any", "--jsonl", str(path), *["--concurrency", "1", "--timeout", "0.4"])
    assert (code, err.splitlines()[-1][:27]) == (1, "error: every request failed")
    found = report["levels"][0]["repeats"][0]["errors"]
    assert found == {error: {"count": len(kinds), "first": first} for error, (kinds, first) in expected.items()}
    for error, (kinds, first) in expected.items():
        assert f"level 1: {len(kinds)} x {error}; first: {first}\n" in out
    assert (shown(out, "requests"), shown(out, "errors")) == (["10"], ["10"])
    assert shown(out, "TTFT ms p50") == ["-"]


@pytest.mark.parametrize(
    ("flag", "text", "says"),
    [
        ("--trace", '[\n{"id": 1,}]', "line 2: not JSON"),
        ("--trace", '{"ids": [3]}', "line 1: not a list"),
        ("--trace", '[{"id": 1, "text": "Hi", "max_tokens": 3}]', "request 1: it needs"),
        ("--trace", '[{"id": 1, "ids": [3], "max_tokens": 0}]', 'request 1: it needs "max_tokens"'),
        ("--trace", "[]", "holds no request"),
        ("--jsonl", '{"prompt": "Hi"}\n{"prompt": \n', "line 2: not JSON"),
        ("--jsonl", '{"max_tokens": 3}', 'line 1: it needs either "prompt" or "messages"'),
        ("--jsonl", '{"prompt": "Hi", "max_tokens": "3"}', 'line 1: "max_tokens" is not a whole number'),
        ("--jsonl", None, "cannot read"),
    ],
)
def test_malformed_files(server, call, tmp_path, flag, text, says):
    path = tmp_path / "work"
    if text is not None:
        path.write_text(text)
    code, out, err = call(PROGRAM, "--url", server.url("quick"), flag, str(path))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert str(path) in err
    assert says in err


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("empty", "serves no model yet"),
        ("locked", "401: no such key. Pass --api-key."),
        ("html", "not a list of models"),
    ],
)
def test_no_model(server, call, kind, says):
    code, out, err = call(PROGRAM, "--url", server.url(kind))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert says in err


def test_no_server(run, closed_port):
    code, out, err = run(PROGRAM, "--url", f"http://localhost:{closed_port}/v1", "--model", "tiny")
    assert (code, out) == (1, "")
    assert err == (
        f"error: cannot reach http://localhost:{closed_port}: connection refused. "
        "Is the server running? Start it with `make serve`.\n"
    )


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--concurrency 1,x", "'x' is not a whole number"),
        ("--rate 0", "above 0"),
        ("--rate 1 --concurrency 1", "not allowed with"),
        ("--prompt-tokens 9:3", "write LOW:HIGH"),
        ("--json /nowhere/x.json", "cannot write /nowhere/x.json"),
        ("--pid 99999999", "no process 99999999"),
    ],
)
def test_bad_flags(call, flags, says):
    code, out, err = call(PROGRAM, *flags.split())
    assert (code, out) == (2, "")
    assert says in err


def test_interrupt_prints_what_there_is(server, start, tmp_path):
    result = tmp_path / "result.json"
    flags = f"--concurrency 1 --requests 50 --output-tokens 4 --json {result}".split()
    process = start(PROGRAM, "--url", server.url("steady-cut"), *flags)
    deadline = time.monotonic() + 10
    while server.calls["steady-cut"] < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=10)
    assert process.returncode == 130
    assert "Traceback" not in err
    report = json.loads(result.read_text())
    done = len(rows(report))
    assert report["interrupted"]
    assert 2 <= done < 50
    assert shown(out, "requests") == [str(done)]
    assert f"answers unfinished and not counted: 1, requests not sent: {50 - done - 1}" in out


def test_bar_on_a_terminal(server, start):
    screen, terminal = pty.openpty()
    process = start(
        PROGRAM,
        "--url",
        server.url("steady"),
        *["--concurrency", "1", "--requests", "2", "--output-tokens", "2"],
        stderr=terminal,
    )
    assert process.wait(15) == 0
    os.close(terminal)
    drawn = os.read(screen, 65536).decode()
    os.close(screen)
    assert "level 1" in drawn
    assert "/2" in drawn
