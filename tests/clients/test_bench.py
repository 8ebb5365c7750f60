"""clients/bench.py against a stand-in server whose answers have known sizes, times and failures."""

import json

import pytest

PROGRAM = "bench.py"


@pytest.fixture
def measure(server, call, tmp_path):
    """Runs the benchmark against a kind of stand-in: (exit code, stdout, stderr, what --json wrote)."""

    def measure_kind(kind, *flags):
        result = tmp_path / "result.json"
        arguments = ["--url", server.url(kind), "--warmup", "0", "--json", str(result), *flags]
        code, out, err = call(PROGRAM, *arguments)
        return code, out, err, json.loads(result.read_text()) if result.exists() else None

    return measure_kind


def rows(report):
    return [row for level in report["levels"] for repeat in level["repeats"] for row in repeat["rows"]]


def test_times_and_counts(server, measure):
    flags = ["--concurrency", "1,2", "--requests", "4", "--prompt-tokens", "3:9", "--output-tokens", "6"]
    code, out, err, report = measure("steady", *flags, "--repeat", "2", "--ignore-eos")
    assert (code, err) == (0, "")
    assert [(level["concurrency"], len(level["repeats"])) for level in report["levels"]] == [(1, 2), (2, 2)]
    assert len(rows(report)) == 16
    for row in rows(report):
        assert (row["output_tokens"], row["cached_tokens"]) == (6, 0)
        # A client that a busy machine keeps from reading sees the first token later, and the next ones sooner.
        assert 1e3 * server.FIRST_TOKEN_S - 1 <= row["ttft_ms"] < 60_000
        assert 1e3 * (server.FIRST_TOKEN_S + 5 * server.TOKEN_S) - 4 <= row["e2e_ms"] < 60_000
        assert row["e2e_ms"] == pytest.approx(row["ttft_ms"] + 5 * row["tpot_ms"])
    for level in report["levels"]:
        for repeat in level["repeats"]:
            sent = sum(row["prompt_tokens"] for row in repeat["rows"])
            assert repeat["requests_per_s"] * repeat["wall_s"] == pytest.approx(4)
            assert repeat["output_tokens_per_s"] * repeat["wall_s"] == pytest.approx(24)
            assert repeat["input_tokens_per_s"] * repeat["wall_s"] == pytest.approx(sent)
            assert repeat["ttft_ms_p50"] <= repeat["ttft_ms_p95"] <= repeat["ttft_ms_p99"]
        walls = sorted(repeat["wall_s"] for repeat in level["repeats"])
        assert level["medians"]["wall_s"] == pytest.approx(sum(walls) / 2)
    assert server.most_running["steady"] == 2
    assert report["options"]["model"] == "tiny"
    assert "api_key" not in report["options"]
    table = {line[:24].strip(): line[24:].split() for line in out.splitlines()}
    assert table["requests in flight"] == ["1", "2"]
    assert (table["requests"], table["errors"]) == (["4", "4"], ["0", "0"])
    shown = float(table["ttft_ms_p50"][0].replace(",", ""))
    assert shown == pytest.approx(report["levels"][0]["medians"]["ttft_ms_p50"], abs=0.6)


def test_random_work(server, measure):
    flags = ["--concurrency", "4,8", "--requests", "8", "--prompt-tokens", "20:40", "--output-tokens", "1:4"]
    for _ in range(2):
        assert measure("quick-ids", *flags, "--vocab-size", "500", "--warmup", "2", "--seed", "5")[0] == 0
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


def test_trace(server, measure, tmp_path):
    trace = tmp_path / "trace.json"
    items = [{"id": f"r{number}", "ids": [5] * 9, "max_tokens": number} for number in (3, 4)]
    trace.write_text(json.dumps([*items, {"text": "Hi there", "max_tokens": 5}]))
    code, _, _, report = measure("early-trace", "--trace", str(trace), "--concurrency", "1", "--requests", "2")
    assert (code, server.sent("early-trace")[0]["prompt"]) == (0, [5] * 9)
    found = [(row["id"], row["prompt_tokens"], row["output_tokens"], "tpot_ms" in row) for row in rows(report)]
    assert found == [("r3", 9, 1, False), ("r4", 9, 2, True)]  # one token has no time between tokens
    measure("quick-trace", "--trace", str(trace), "--concurrency", "1", "--ignore-eos")
    sent = server.sent("quick-trace")
    assert [(body["prompt"], body["max_tokens"]) for body in sent][2] == ("Hi there", 5)
    assert all(body["ignore_eos"] for body in sent)


@pytest.mark.parametrize(("kind", "cached"), [("nousage", 0), ("pieces", 0), ("cached", 6)])
def test_counts_without_usage_in_pieces_and_cached(server, measure, kind, cached):
    flags = ["--concurrency", "2", "--requests", "2", "--output-tokens", "7", "--prompt-tokens", "4"]
    code, _, _, report = measure(kind, *flags)
    assert code == 0
    tokens = {"pieces": len(server.ANSWER), "nousage": 8}.get(kind, 7)  # the last chunk, without a token, counts too
    assert [(row["prompt_tokens"], row["output_tokens"]) for row in rows(report)] == [(4, tokens)] * 2
    assert report["levels"][0]["medians"]["cached_tokens"] == cached


def test_errors_are_counted(measure):
    code, _, err, report = measure("third", *["--concurrency", "3", "--requests", "9", "--output-tokens", "2"])
    assert code == 0
    repeat = report["levels"][0]["repeats"][0]
    assert (repeat["requests"], repeat["errors"]) == (9, 3)
    assert repeat["requests_per_s"] * repeat["wall_s"] == pytest.approx(6)
    assert "3 of 9 requests failed, the first so: HTTP 503" in err
    assert "all 4 slots are taken" in err


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("busy", "HTTP 503"),
        ("midway", "error in the stream"),
        ("named", "ended after 2 chunks, before the answer did"),
        ("short", "ended after 2 chunks, before the answer did"),
        ("broken", ""),
        ("stall", "no whole answer within 0.4 s"),
        ("page", "ended after 0 chunks"),
        ("lost", "no model 'tiny'"),
    ],
)
def test_every_request_fails(measure, kind, says):
    flags = ["--concurrency", "1", "--requests", "1", "--output-tokens", "3", "--model", "tiny"]
    code, _, err, report = measure(kind, *flags, "--timeout", "0.4" if kind == "stall" else "60")
    assert (code, report["levels"][0]["medians"]["errors"]) == (1, 1)
    assert "1 of 1 requests failed, the first so: " in err
    assert says in err


@pytest.mark.parametrize("text", ['[\n{"id": 1,}]', '{"ids": [3]}', '[{"id": 1, "max_tokens": 3}]', "[]", None])
def test_malformed_traces(server, call, tmp_path, text):
    path = tmp_path / "work"
    if text is not None:
        path.write_text(text)
    code, out, err = call(PROGRAM, "--url", server.url("quick"), "--trace", str(path))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert str(path) in err


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("empty", "lists no model"),
        ("locked", "answered 401"),
        ("html", "cannot reach"),
    ],
)
def test_no_model(server, call, kind, says):
    code, out, err = call(PROGRAM, "--url", server.url(kind))
    assert (code, out, err.count("\n")) == (1, "", 1)
    assert says in err


def test_no_server(run, closed_port):
    code, out, err = run(PROGRAM, "--url", f"http://localhost:{closed_port}/v1", "--model", "tiny")
    assert (code, out) == (1, "")
    assert f"cannot reach http://localhost:{closed_port}" in err
    assert "Start it with `make serve`" in err


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--concurrency 1,x", "'x' is not a whole number"),
        ("--prompt-tokens 9:3", "write LOW:HIGH"),
        ("--url ftp://x", "is not a server's address"),
    ],
)
def test_bad_flags(call, flags, says):
    code, out, err = call(PROGRAM, *flags.split())
    assert (code, out) == (2, "")
    assert says in err
