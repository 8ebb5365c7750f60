"""The client of `--kill-slice`: harm that is done on purpose is counted, and nothing else is.

The oracle is the harm: a stand-in for the service does it to every third answer.
"""

import json
import time

import pytest

from kuberay.local import LocalError
from kuberay.local.drill.kinds import CHATS, KINDS
from kuberay.local.drill.streams import DrillCounts, Streams, alike, joined
from tests.http_servers import StandInHandler, StandInServer

WORDS = ["Mon", "day", ", Tues", "day"]


class Answering(StandInHandler):
    protocol_version = "HTTP/1.0"  # an answer ends with its connection, so that one can be cut

    def do_POST(self) -> None:
        asked = json.loads(self.body())
        if self.path == CHATS:
            return self.answer({"error": {"message": "no chat template"}}, 400)
        self.server.asked += 1
        harm = self.server.harm if self.server.asked % 3 == 0 else None
        if harm == "refused":
            return self.answer({"error": {"message": "overloaded"}}, 503)
        events = [event(word, index) for index in range(asked.get("n", 1)) for word in WORDS]
        if harm == "another token":
            events[-1] = event("night")
        if harm == "a token twice":
            events.insert(2, events[1])
        if harm == "an error":
            events[2:] = [{"error": {"message": "the replica died"}}]
        if harm == "split otherwise":
            events[:2] = [event("M"), event("onday")]
        lines = [f"data: {json.dumps(each)}\n\n" for each in events]
        if harm != "cut":
            lines.append("data: [DONE]\n\n")
        self.send_response(200)
        self.end_headers()
        self.wfile.write("".join(lines).encode())
        return None

    def do_GET(self) -> None:
        self.answer('vllm:kv_cache_usage_perc{model="m"} 0.25\nvllm:kv_cache_usage_perc{model="n"} 0.0\n')


def event(text: str, index: int = 0) -> dict:
    return {"id": f"cmpl-{time.monotonic()}", "model": "m", "choices": [{"index": index, "text": text}]}


def drilled(harm: str | None, answers: int = 40) -> Streams:
    with StandInServer(Answering) as server:
        server.asked, server.harm = 0, None
        streams = Streams(server.url, "m", None, DrillCounts())
        streams.record()
        server.harm = harm
        streams.start()
        counts = streams.counts
        while counts.answers < answers:
            time.sleep(0.01)
        streams.stop()
        while streams.running:
            time.sleep(0.01)
        assert streams.pages_used() == 0.25, "the fullest replica's"
        return streams


@pytest.mark.parametrize("harm", ["another token", "a token twice"])
def test_a_wrong_answer_is_counted(harm: str) -> None:
    streams = drilled(harm)
    counts = streams.counts
    assert counts.wrong > 5 and counts.lost == 0
    assert "wrong" in streams.failures[0]


@pytest.mark.parametrize(
    ("harm", "said"), [("refused", "503"), ("an error", "the replica died"), ("cut", "ended before its [DONE]")]
)
def test_a_lost_stream_is_counted(harm: str, said: str) -> None:
    streams = drilled(harm, answers=20)
    assert streams.counts.lost > 3 and streams.counts.wrong == 0
    assert said in streams.failures[0] and len(streams.failures) <= 5


@pytest.mark.parametrize("harm", [None, "split otherwise"])
def test_what_is_no_harm_is_not_counted(harm: str | None) -> None:
    streams = drilled(harm)
    assert (streams.counts.lost, streams.counts.wrong, streams.failures) == (0, 0, [])
    assert streams.left_out.keys() == {kind for kind, (route, _) in KINDS.items() if route == CHATS}
    assert "no chat template" in streams.left_out["schema"]


def test_a_service_that_answers_nothing_is_no_measure() -> None:
    with StandInServer(StandInHandler) as server, pytest.raises(LocalError, match="answers no request"):
        Streams(server.url, "m", None, DrillCounts()).record()


def test_log_probabilities_may_differ_in_their_last_digits_and_tokens_may_not() -> None:
    answer = [{"index": 0, "logprobs": {"tokens": ["a"], "token_logprobs": [-0.5]}}]
    near = [{"index": 0, "logprobs": {"tokens": ["a"], "token_logprobs": [-0.5001]}}]
    far = [{"index": 0, "logprobs": {"tokens": ["a"], "token_logprobs": [-0.6]}}]
    assert alike(answer, near) and not alike(answer, far)
    assert not alike(answer, joined(answer, [{"index": 0, "logprobs": {"tokens": ["b"], "token_logprobs": [-0.5]}}]))


def test_a_tool_calls_arguments_are_put_together() -> None:
    parts = (
        [{"id": "call-1", "index": 0, "function": {"name": "note", "arguments": '{"da'}}],
        [{"index": 0, "function": {"arguments": 'y":1}'}}],
    )
    answer = None
    for calls in parts:
        answer = joined(answer, [{"index": 0, "delta": {"tool_calls": calls}}])
    assert answer[0]["delta"]["tool_calls"] == [{"index": 0, "function": {"name": "note", "arguments": '{"day":1}'}}]


def test_counts_of_earlier_runs_are_gone_on_with(tmp_path) -> None:
    path = tmp_path / "counts.json"
    assert DrillCounts.read(path) == DrillCounts()
    DrillCounts(kills=3, answers=40, lost=1).write(path)
    assert DrillCounts.read(path) == DrillCounts(kills=3, answers=40, lost=1)
    path.write_text("{}}")
    with pytest.raises(LocalError, match=r"--counts .*counts.json: cannot be read"):
        DrillCounts.read(path)
