"""Traces as their publishers describe them: Mooncake's FAST25 release, AIPerf's `mooncake_trace`, Bailian's README and
Azure's LLM inference dataset. The lines are in their forms, with other numbers."""

from pathlib import Path

import pytest

from apps.plan.simulation.requests import TraceRequest, page_names
from apps.plan.workload import traces

MOONCAKE = """
{"timestamp": 3000, "input_length": 1100, "output_length": 52, "hash_ids": [0, 1, 2]}
{"timestamp": 3105, "input_length": 1800, "output_length": 26, "hash_ids": [0, 1, 5, 6]}
{"timestamp": 3050, "input_length": 10, "output_length": 0}
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "trace"
    path.write_text(text.lstrip())
    return path


def test_mooncake_in_milliseconds_from_its_first_request_and_by_time(tmp_path: Path) -> None:
    workload = traces.read(written(tmp_path, MOONCAKE))
    assert [arrival.at_s for arrival in workload.arrivals] == pytest.approx([0, 0.05, 0.105])
    assert [(arrival.prompt, arrival.answer) for arrival in workload.arrivals] == [(1100, 52), (10, 1), (1800, 26)]
    assert workload.shares and not workload.reacts
    first, _, third = workload.arrivals
    one, other = page_names(first, 0, 32), page_names(third, 2, 32)
    assert one[:32] == other[:32] and not set(one[32:]) & set(other), "two blocks of 512 tokens are 32 pages of 32"
    assert len(one) == (1100 + 52) // 32 and len({*one, *other}) == len(one) + len(other) - 32


def test_a_block_is_the_same_only_after_the_same_blocks() -> None:
    """AIPerf's example has `[0, 1, 2]` and `[1, 4, 6]`: the 1 of the second has nothing before it."""
    one = page_names(TraceRequest(0, 1536, 1, (0, 1, 2), 512), 0, 128)
    other = page_names(TraceRequest(0, 1536, 1, (1, 4, 6), 512), 1, 128)
    assert not set(one) & set(other)


def test_blocks_with_any_numbers_are_told_apart() -> None:
    """-1 and -2 have the same hash in Python."""
    names = [page_names(TraceRequest(0, 16, 1, (block,), 16), 0, 16)[0] for block in range(-5, 5)]
    assert len(set(names)) == 10


def test_pages_larger_than_blocks_are_named_by_all_of_theirs() -> None:
    one = page_names(TraceRequest(0, 64, 1, (1, 2, 3, 4), 16), 0, 32)
    other = page_names(TraceRequest(0, 64, 1, (1, 2, 3, 5), 16), 1, 32)
    assert one[0] == other[0] and one[1] != other[1]


def test_aiperf_sessions_go_on_from_what_was_said(tmp_path: Path) -> None:
    """AIPerf's docs: a session's turns accumulate history, and a `delay` follows the turn before."""
    workload = traces.read(
        written(
            tmp_path,
            """
{"session_id": "a", "timestamp": 0, "input_length": 100, "output_length": 50}
{"session_id": "b", "timestamp": 10, "input_length": 30, "output_length": 5}
{"session_id": "a", "delay": 2000, "input_length": 20, "output_length": 40}
{"session_id": "a", "delay": 500, "input_length": 7, "output_length": 8}
""",
        )
    )
    turns = [arrival for arrival in workload.arrivals if arrival.session == "a"]
    assert [arrival.prompt for arrival in turns] == [100, 170, 170 + 40 + 7]
    assert [arrival.after_s for arrival in turns] == [None, 2.0, 0.5] and workload.reacts
    before = page_names(turns[0], 0, 16)
    assert page_names(turns[1], 2, 16, before)[: len(before)] == before


def test_bailian_in_seconds_with_the_answers_that_later_turns_have(tmp_path: Path) -> None:
    workload = traces.read(
        written(
            tmp_path,
            '{"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.5, "input_length": 40, "output_length": 30, '
            '"type": "text", "turn": 1, "hash_ids": [7, 8, 9]}\n'
            '{"chat_id": 160, "parent_chat_id": 159, "timestamp": 63, "input_length": 90, "output_length": 4, '
            '"type": "text", "turn": 2, "hash_ids": [7, 8, 10, 11, 12, 13]}\n',
        )
    )
    first, second = workload.arrivals
    assert (second.at_s, first.prompt, second.answer) == (1.5, 40, 4)
    one, other = page_names(first, 0, 16), page_names(second, 1, 16)
    assert len(one) == 4 and one == other[:4], "40 tokens of prompt and 30 of answer: four full pages, all found again"


def test_azure(tmp_path: Path) -> None:
    workload = traces.read(
        written(
            tmp_path,
            """
TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,110,27
2024-05-10 00:00:00.009930+00:00,3,4
""".replace("2024-05-10 00:00:00.009930+00:00", "2023-11-16 18:17:05.9799600"),
        )
    )
    assert [arrival.at_s for arrival in workload.arrivals] == pytest.approx([0, 0.052, 2.0])
    assert not workload.shares


def test_azure_of_2024_has_a_time_zone(tmp_path: Path) -> None:
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,3,4\n2024-05-10 00:00:01+00:00,3,4\n"
    )
    assert traces.read(written(tmp_path, text)).arrivals[1].at_s == pytest.approx(0.99007)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "has no requests"),
        ("\n\n", "has no requests"),
        ('{"timestamp": 0, "input_length": 5}', "line 1: no request of a trace (KeyError: 'output_length')"),
        (MOONCAKE + "{oops", "line 4: no request of a trace (JSONDecodeError"),
        (MOONCAKE + "[3]", "line 4: no request of a trace (ValueError: not an object)"),
        ('{"timestamp": 0, "input_length": 0, "output_length": 5}', "0 tokens of prompt"),
        (
            '{"timestamp": 0, "text_input": "x", "output_length": 5}',
            "count its tokens with the model's tokenizer first",
        ),
        ('{"session_id": "a", "delay": 5, "input_length": 3, "output_length": 5}', "'timestamp'"),
        ("TIMESTAMP,ContextTokens\n2023-11-16 18:17:03,5\n", "GeneratedTokens missing"),
        ("TIMESTAMP,ContextTokens,GeneratedTokens\nyesterday,5,5\n", "line 2: no request of a trace (ValueError"),
        (
            "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,5\n",
            "line 2: no request of a trace (TypeError",
        ),
    ],
)
def test_what_is_no_trace_is_refused_with_its_line(text: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError) as refused:
        traces.read(written(tmp_path, text))
    assert complaint in str(refused.value)


def test_a_file_that_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "trace").write_bytes(b"\xff\xfe\x00PK")
    with pytest.raises(ValueError, match="is no text"):
        traces.read(tmp_path / "trace")
