"""Sessions of logs, of generators, and as they were written."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from radixlm.core.errors import ConfigError
from radixlm.sim.calls import Problems, TraceSession
from radixlm.sim.generators import GENERATORS
from radixlm.sim.sources import TraceSource, write_trace

CALL = {"id": "1", "type": "function", "function": {"name": "look", "arguments": '{"at": 1}'}}
MESSAGES = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hello"},
    {"role": "assistant", "content": "Hello! What is it?"},
    {"role": "user", "content": "Look there."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "1", "name": "look", "content": "a tree"},
    {"role": "assistant", "content": "There is a tree."},
]

USER = {"role": "user", "content": "Hello"}
DEEP = {"name": "look", "arguments": "[" * 100_000}


def calling(**more: object) -> dict[str, object]:
    return {"role": "assistant", "content": None, "tool_calls": [CALL | more]}


def write(path: Path, *lines: object) -> TraceSource:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return TraceSource(str(path))


def opened(source: TraceSource) -> list[TraceSession]:
    problems = Problems()
    sessions = list(source.open(problems))
    assert not problems.shown
    return sessions


def begins(longer: np.ndarray, shorter: np.ndarray) -> bool:
    return longer[: shorter.size].tolist() == shorter.tolist()


def test_each_answer_of_a_conversation_ends_a_call(tmp_path):
    (session,) = opened(write(tmp_path / "log.jsonl", {"session": "a", "messages": MESSAGES}))
    assert session.at is None
    first, second, third = session.calls
    for before, after in ((first, second), (second, third)):
        assert begins(after.prompt, np.concatenate((before.prompt, before.answer)))
        assert after.prompt.size > before.prompt.size + before.answer.size


def test_texts_of_a_file_are_one_session(tmp_path):
    said = [{"timestamp": n, "input": "a b" + " a b" * n, "output": "c"} for n in (1, 2, 3)]
    (session,) = opened(write(tmp_path / "log.jsonl", *said))
    assert len(session.calls) == 3
    assert begins(session.calls[1].prompt, session.calls[0].prompt)


def test_files_of_a_folder_are_sessions_one_after_the_other(tmp_path):
    for name in "ab":
        write(tmp_path / f"{name}.jsonl", {"input": f"{name} says", "output": "c"})
    sessions = opened(TraceSource(str(tmp_path)))
    assert [session.calls[0].where for session in sessions] == ["a.jsonl:1", "b.jsonl:1"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ({"messages": [{"role": "user", "content": "Hello"}]}, "no message is an answer"),
        ({"messages": [{"content": "Hello"}]}, "messages can not be rendered: 'role'"),
        ({"messages": 7}, "messages can not be rendered"),
        ({"messages": [USER, calling(function="ab")]}, "messages can not be rendered: dictionary"),
        ({"messages": [USER, calling(function=DEEP)]}, "messages can not be rendered: maximum rec"),
        ({"input": "\ud800", "output": "c"}, "input or output has no tokens"),
        ({"input": "Hello", "output": ""}, "input or output is empty"),
        ({"input": "Hello"}, "output is no text: None"),
    ],
)
def test_what_is_no_call_is_left_out(line, reason, tmp_path):
    source = write(tmp_path / "log.jsonl", {"messages": MESSAGES}, line)
    problems = Problems()
    assert len(list(source.open(problems))) == 1
    assert problems.shown[0].startswith("log.jsonl:2: ")
    assert reason in problems.shown[0]


@pytest.mark.parametrize("name", GENERATORS)
def test_what_is_made_up_is_the_same_for_the_same_seed_and_goes_on(name):
    one, same, other = (opened(TraceSource(name, limit=12, seed=seed)) for seed in (1, 1, 2))
    prompts = [[call.prompt.tolist() for call in session.calls] for session in one]
    assert prompts == [[call.prompt.tolist() for call in session.calls] for session in same]
    assert prompts != [[call.prompt.tolist() for call in session.calls] for session in other]
    times = [session.at for session in one]
    assert times == sorted(times)
    assert all(call.answer.size for session in one for call in session.calls)


def test_chats_and_agents_go_on_from_their_answers():
    for name in ("chats", "agents"):
        for session in opened(TraceSource(name, limit=5)):
            for before, after in zip(session.calls, session.calls[1:], strict=False):
                assert begins(after.prompt, np.concatenate((before.prompt, before.answer)))


@pytest.mark.parametrize("source", [TraceSource("chats", limit=5), TraceSource("trees", limit=3)])
def test_sessions_are_read_as_they_were_written(source, tmp_path):
    sessions = opened(source)
    count = write_trace(tmp_path / "trace.jsonl", sessions)
    again = opened(TraceSource(str(tmp_path / "trace.jsonl")))
    assert count == sum(len(session.calls) for session in sessions)
    begin = sessions[0].at
    for one, other in zip(sessions, again, strict=True):
        assert other.at == pytest.approx(one.at - begin, abs=1e-5)
        for call, read in zip(one.calls, other.calls, strict=True):
            assert call.prompt.tolist() == read.prompt.tolist()
            assert call.answer.tolist() == read.answer.tolist()
            assert read.gap == pytest.approx(call.gap, abs=1e-5)


def test_a_rate_and_a_limit():
    whole = opened(TraceSource("chats", limit=4))
    fast = opened(TraceSource("chats", limit=3, rate=2.0))
    assert [session.at for session in fast] == [session.at / 2 for session in whole[:3]]


def test_lines_that_go_on_need_one_to_go_on_from(tmp_path):
    good = {"token_ids": [1], "output_length": 1}
    source = write(
        tmp_path / "trace.jsonl",
        {**good, "timestamp": 1},
        {**good, "timestamp": 2, "token_ids": []},
        {**good, "gap": 5},
        {**good, "timestamp": 3},
        {**good, "gap": 5},
    )
    problems = Problems()
    sessions = list(source.open(problems))
    assert [len(session.calls) for session in sessions] == [1, 2]
    assert "trace.jsonl:3: it goes on from a line that was left out" in problems.shown[1]


def test_what_is_no_trace_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="there is no trace 'absent': give a file"):
        TraceSource("absent").open(Problems())
    (tmp_path / "notes.jsonl").write_text('{"text": 1}\n')
    with pytest.raises(ConfigError, match="is no trace: no line has hash_ids"):
        TraceSource(str(tmp_path / "notes.jsonl")).open(Problems())
