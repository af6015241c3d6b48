"""Traces are read line by line; what is wrong with a line is said, and the rest goes on."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radixlm.core.request import Breakpoint, Hint
from radixlm.sim import trace_files
from radixlm.sim.calls import MOST_SHOWN, Problems
from radixlm.sim.sources import TraceSource
from radixlm.sim.trace_files import LOOK_AHEAD


def mooncake(at: float, ids: list[int], length: int, out: int = 2) -> str:
    fields = {"timestamp": at, "input_length": length, "output_length": out, "hash_ids": ids}
    return json.dumps(fields)


def exact(at: float, ids: list[int], **more: object) -> str:
    return json.dumps({"timestamp": at, "token_ids": ids, "output_length": 1, **more})


GOOD = mooncake(0, [1], 5)


@pytest.fixture
def problems() -> Problems:
    return Problems()


@pytest.fixture
def read(tmp_path: Path, problems: Problems):
    def read(*lines: str, end: str = "\n", **options: int):
        path = tmp_path / "trace.jsonl"
        path.write_bytes("\n".join(lines).encode() + end.encode())
        return list(TraceSource(str(path), **options).open(problems))

    return read


def test_equal_blocks_are_equal_tokens(read):
    first, second = read(mooncake(1_000, [7, 8], 700), mooncake(3_500, [7, 9], 1_024, out=3))
    (one,), (two,) = first.calls, second.calls
    assert (one.prompt.size, two.prompt.size, two.answer.size) == (700, 1_024, 3)
    assert (one.prompt[:512] == two.prompt[:512]).all()
    assert not (one.prompt[512:] == two.prompt[512:700]).any()
    assert (first.at, second.at) == (0, 2.5)
    assert set(one.answer.tolist()).isdisjoint([*two.prompt.tolist(), *two.answer.tolist()])


def test_a_token_may_stand_for_a_block(read, tmp_path):
    (session,) = read(mooncake(0, [7, 8], 700, out=9), tokens_per_block=1)
    assert session.calls[0].prompt.tolist() == [7, 8]
    assert session.calls[0].answer.size == 1
    path = tmp_path / "trace.jsonl"
    assert TraceSource(str(path), tokens_per_block=1).open(Problems()).scale == 512


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('{"timestamp": 1, "input', "is no JSON"),
        ("[1, 2]", "no JSON object: a list"),
        ("[" * 100_000, "is no JSON"),
        ('{"timestamp": 1}', "input_length is not from 1"),
        (mooncake(float("nan"), [1], 5), "timestamp is no number up to 1,000,000,000,000,000: nan"),
        (mooncake(10**400, [1], 5), "timestamp is no number up to 1,000,000,000,000,000: 1000"),
        (mooncake(-1e300, [1], 5), "timestamp is no number up to 1,000,000,000,000,000: -1e+300"),
        (mooncake(1, [10**400, 1], 5), "hash_ids are no integers up to 2,097,152: 1000"),
        (mooncake(1, [1], 5, out=0), "output_length is not from 1 to 16,777,216: 0"),
        (mooncake(1, [1, 2], 5), "hash_ids and input_length differ: 2 blocks for 5 tokens"),
        (mooncake(1, [2**40], 5), "hash_ids are no integers up to 2,097,152: 1099511627776"),
        (mooncake(1, [2**80], 5), "hash_ids are no integers"),
        (mooncake(1, [-1], 5), "hash_ids are no integers up to 2,097,152: -1"),
        (mooncake(1, [1.5], 5), "hash_ids are no integers up to 2,097,152: 1.5"),
        (mooncake(1, [[1]], 5), "hash_ids are no integers"),  # type: ignore[list-item]
        (mooncake(1, [], 5), "hash_ids is no list of ids: []"),
        (mooncake(-1, [1], 5), "its time goes back"),
    ],
)
def test_a_bad_line_is_left_out(line, reason, read, problems):
    sessions = read(GOOD, line, mooncake(9, [2], 5))
    assert [session.at for session in sessions] == pytest.approx([0, 0.009])
    assert problems.count == 1
    assert problems.shown[0].startswith("trace.jsonl:2: ")
    assert reason in problems.shown[0]


def test_a_torn_end_is_named_so(read, problems):
    assert len(read(GOOD, '{"timestamp": 1, "inp', end="")) == 1
    assert "trace.jsonl:2: the line is torn" in problems.shown[0]


def test_all_are_counted_and_some_are_shown(read, problems):
    read(GOOD, *["x"] * (2 * MOST_SHOWN))
    assert problems.counts == {"the line is no JSON": 2 * MOST_SHOWN}
    assert len(problems.shown) == MOST_SHOWN


def test_a_line_without_end_does_not_fill_memory(read, problems, monkeypatch):
    monkeypatch.setattr(trace_files, "MOST_LINE_BYTES", 1_000)
    assert len(read(GOOD, "x" * 10_500, mooncake(1, [1], 5))) == 2
    assert problems.count == 1
    assert problems.shown[0].startswith("trace.jsonl:2: ")


def test_recorded_requests_have_all_that_matters(read):
    (session,) = read(
        exact(
            5,
            [3, 1, 2],
            output_ids=[9, 8],
            namespace="a",
            tenant="b",
            priority=2,
            max_tokens=7,
            hints={"breakpoints": [[2, 300]], "next": "tool_running"},
        )
    )
    (call,) = session.calls
    assert call.prompt.tolist() == [3, 1, 2]
    assert call.answer.tolist() == [9, 8]
    assert (call.namespace.cache_salt, call.tenant, call.priority) == ("a", "b", 2)
    assert call.max_tokens == 7
    assert call.breakpoints == (Breakpoint(2, 300),)
    assert call.hint is Hint.TOOL_RUNNING


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"output_ids": [2**31]}, "output_ids are no integers up to 2,147,483,647: 2147483648"),
        ({"namespace": 3}, "namespace is no text: 3"),
        ({"hints": []}, "hints are no object"),
        ({"hints": {"breakpoints": [[0, 1]]}}, "a breakpoint is no [tokens, seconds]: [0, 1]"),
        ({"hints": {"next": 7}}, "next is not one of none, tool_running, "),
        ({"hints": {"breakpoints": [7]}}, "a breakpoint is no [tokens, seconds]: 7"),
        (
            {"hints": {"breakpoints": [[1, 10**400]]}},
            "a breakpoint is no [tokens, seconds]: [1, 10",
        ),
        ({"hints": {"breakpoints": [[1, float("nan")]]}}, "a breakpoint is no [tokens, seconds]"),
        ({"hints": {"breakpoints": [[1, 0]]}}, "a breakpoint is no [tokens, seconds]: [1, 0]"),
        ({"token_ids": [True, 2]}, "token_ids are no integers up to 2,147,483,647: True"),
        ({"token_ids": ["x"] * 4_000 + ["x" * 10**7]}, "token_ids are no integers"),
        ({"priority": 10**400}, "priority is not from"),
        ({"priority": "high"}, "priority is not from"),
    ],
)
def test_bad_fields_of_recorded_requests(more, reason, read, problems):
    assert len(read(exact(0, [1]), exact(1, [1], **more))) == 1
    assert reason in problems.shown[0]


@pytest.mark.parametrize("gap", [10**400, float("inf"), "5", True], ids=type)
def test_a_call_after_such_a_time_is_left_out(gap, read, problems):
    bad = json.dumps({"gap": gap, "token_ids": [1], "output_length": 1})
    good = json.dumps({"gap": 5, "token_ids": [1, 2], "output_length": 1})
    (session,) = read(exact(0, [1]), bad, good)
    assert [call.gap for call in session.calls] == [0, 0.005]
    assert "trace.jsonl:2: gap is no number up to" in problems.shown[0]


def test_recorded_requests_come_in_order_though_they_were_written_at_their_ends(read, problems):
    times = [3, 1, 2, 0, *range(4, LOOK_AHEAD + 4)]
    sessions = read('{"radixlm_trace": 1}', *(exact(at, [1]) for at in times))
    assert [round(1_000 * session.at) for session in sessions] == list(range(LOOK_AHEAD + 4))
    assert not problems.count


def test_one_that_is_too_late_is_left_out(read, problems):
    times = [*range(1, LOOK_AHEAD + 3), 0]
    assert len(read(*(exact(at, [1]) for at in times))) == LOOK_AHEAD + 2
    assert problems.counts == {"its time goes back": 1}
