"""Answers on disk say what is done, also after a sudden end."""

from __future__ import annotations

import asyncio
import json
from array import array
from pathlib import Path

import pytest

from radixlm.batch.batch_run import answer_all
from radixlm.batch.lines import BatchLine
from radixlm.batch.order import BatchPlan, plan
from radixlm.batch.results import LineAnswer, NoRoomError, Results
from radixlm.core.errors import ConfigError

NUMBERS = array("I", [0, 3, 4])
GOOD, BAD = LineAnswer(200, "q", b'{"a":\n1}'), LineAnswer(400, "q", b"{}")


def opened(folder: Path, mark: str = "m", errors: str = "err", most: int | None = None) -> Results:
    return Results(mark, NUMBERS, folder / "out", folder / errors, most)


def records(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("errors", ["err", "out"])
def test_what_was_written_is_done_later(tmp_path, errors):
    results = opened(tmp_path, errors=errors)
    results.add(1, '"response": {"status_code": 500', GOOD)
    results.add(0, "b", BAD)
    results.close()
    later = opened(tmp_path, errors=errors)
    assert (later.completed, later.failed, bytes(later.done)) == (1, 1, b"\1\1\0")
    later.add_error(2, "c", "batch_expired", "late")
    later.close()
    last = records(tmp_path / errors)[-1]
    assert last["error"] == {"code": "batch_expired", "message": "late"}
    assert opened(tmp_path, errors=errors).failed == 2
    assert records(tmp_path / "out")[0]["response"] == {
        "status_code": 200,
        "request_id": "q",
        "body": {"a": 1},
    }


def test_a_torn_record_is_cut_off_wherever_it_is_torn(tmp_path):
    results = opened(tmp_path)
    results.add(0, "a", GOOD)
    results.add(2, "b", GOOD)
    results.close()
    whole = (tmp_path / "out").read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        (tmp_path / "out").write_bytes(whole[:end])
        later = opened(tmp_path)
        later.close()
        assert (bytes(later.done), (tmp_path / "out").stat().st_size) == (b"\1\0\0", first)


@pytest.mark.parametrize(
    "content", ['{"id": "batch_req_other_0", }\n', "notes\n", '{"id": "batch_req_m_1", }\n']
)
def test_a_file_of_something_else_is_left_alone(tmp_path, content):
    (tmp_path / "out").write_text(content)
    with pytest.raises(ConfigError, match="something else"):
        opened(tmp_path)
    assert (tmp_path / "out").read_text() == content


def test_one_line_twice_is_noticed(tmp_path):
    results = opened(tmp_path)
    results.add(0, "a", GOOD)
    results.close()
    (tmp_path / "out").write_bytes(2 * (tmp_path / "out").read_bytes())
    with pytest.raises(ConfigError, match="something else"):
        opened(tmp_path)


def test_no_more_is_written_than_there_is_room_for(tmp_path):
    results = opened(tmp_path, most=150)
    results.add(0, "a", GOOD)
    size = (tmp_path / "out").stat().st_size
    with pytest.raises(NoRoomError, match="150 bytes"):
        results.add(1, "b", GOOD)
    assert (tmp_path / "out").stat().st_size == size
    assert bytes(results.done) == b"\1\0\0"


def inputs(folder: Path, count: int) -> BatchPlan:
    line = {"url": "/v1/completions"}
    lines = [line | {"custom_id": str(n), "body": {"prompt": f"{n % 5} {n}"}} for n in range(count)]
    (folder / "in").write_text("\n".join(map(json.dumps, lines)))
    return plan(folder / "in", 1 << 20)


def test_lines_are_asked_in_order_and_again_where_there_was_no_room(tmp_path, monkeypatch):
    monkeypatch.setattr("radixlm.batch.batch_run.PAUSE_SECONDS", 0)
    whole = inputs(tmp_path, 50)
    results = Results(whole.mark, whole.numbers, tmp_path / "out", tmp_path / "out")
    asked: list[str] = []
    running = 0
    most = 0

    async def ask(line: BatchLine, content: bytes, part: int) -> LineAnswer:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        first = line.body["prompt"] not in asked
        asked.append(line.body["prompt"])
        return LineAnswer(429, "", b"{}") if first else GOOD

    asyncio.run(answer_all(whole, results, ask, lambda: 3))
    results.close()
    assert list(dict.fromkeys(asked)) == sorted(f"{n % 5} {n}" for n in range(50))
    assert len(asked) == 100
    assert most <= 3
    assert len({each["custom_id"] for each in records(tmp_path / "out")}) == 50


def test_what_ended_while_lines_were_read_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr("radixlm.batch.batch_run.LOOK_SECONDS", 600)
    whole = inputs(tmp_path, 200)
    results = Results(whole.mark, whole.numbers, tmp_path / "out", tmp_path / "out")

    async def ask(line: BatchLine, content: bytes, part: int) -> LineAnswer:
        return GOOD

    async def answered() -> None:
        async with asyncio.timeout(60):
            await answer_all(whole, results, ask, lambda: 32)

    asyncio.run(answered())
    results.close()
    assert results.completed == 200


def test_what_ask_raises_ends_the_run_and_what_is_done_stays(tmp_path):
    whole = inputs(tmp_path, 20)
    results = Results(whole.mark, whole.numbers, tmp_path / "out", tmp_path / "out")

    async def ask(line: BatchLine, content: bytes, part: int) -> LineAnswer:
        await asyncio.sleep(0)
        if results.completed == 7:
            raise RuntimeError("gone")
        return GOOD

    with pytest.raises(RuntimeError, match="gone"):
        asyncio.run(answer_all(whole, results, ask, lambda: 2))
    results.close()
    again = Results(whole.mark, whole.numbers, tmp_path / "out", tmp_path / "out")
    again.close()
    assert 7 <= again.completed < 10


def test_parts_are_answered_side_by_side_each_in_order(tmp_path):
    whole = inputs(tmp_path, 100)
    results = Results(whole.mark, whole.numbers, tmp_path / "out", tmp_path / "out")
    asked: list[list[str]] = [[], []]
    waiting = asyncio.Barrier(2)  # passed by two at once

    async def ask(line: BatchLine, content: bytes, part: int) -> LineAnswer:
        asked[part].append(line.body["prompt"])
        if len(asked[part]) == 1:
            await waiting.wait()
        return GOOD

    asyncio.run(answer_all(whole, results, ask, lambda: 1, parts=2))
    results.close()
    assert [*asked[0], *asked[1]] == sorted(f"{n % 5} {n}" for n in range(100))
    assert 40 <= len(asked[0]) <= 60
    assert results.completed == 100
