"""The seam: what callers in threads and coroutines may rely on, crash included."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import pytest

from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.core.errors import EngineDeadError, InvalidRequestError, QueueFullError
from radixlm.core.request import FinishReason, GenerateRequest, RequestOutput
from radixlm.engine import EngineClient, EngineCore, collect
from radixlm.engine.mailbox import TaskMailbox, ThreadMailbox, deliver_all
from tests.engines import Bench, byte_tokenizer, make_request, processor


class _Gate:
    """A runner that waits before each step until it is let go, and can be told to crash."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self.open = threading.Event()
        self.open.set()
        self.crash = False
        self.closes_after: int | None = None

    def execute(self, batch: ScheduledBatch) -> StepResult:
        assert self.open.wait(60)
        if self.crash:
            raise RuntimeError("the device is gone")
        if self.closes_after is not None:
            self.closes_after -= 1
            if not self.closes_after:
                self.open.clear()
        return self._bench.runner.execute(batch)


class _Engine:
    def __init__(self, max_queued: int = 64) -> None:
        self.bench = Bench(capacity=512, budget=64)
        self.gate = _Gate(self.bench)
        core = EngineCore(self.bench.scheduler, self.bench.cache, self.gate, byte_tokenizer())
        self.client = EngineClient(core, processor(), max_queued_requests=max_queued)


def generate(engine: _Engine, requests: list[GenerateRequest]) -> list[RequestOutput]:
    return collect(requests, engine.client.run(requests))


@pytest.fixture
def engine() -> Iterator[_Engine]:
    made = _Engine()
    yield made
    made.gate.open.set()
    made.client.close()


def _requests(count: int, max_tokens: int = 4) -> list[GenerateRequest]:
    return [make_request(f"r{index}", [1, 2, 3, index], max_tokens) for index in range(count)]


def test_generate_returns_outputs_in_order(engine: _Engine) -> None:
    requests = _requests(5)
    outputs = generate(engine, requests)
    assert [output.request_id for output in outputs] == [f"r{index}" for index in range(5)]
    for request, output in zip(requests, outputs, strict=True):
        assert list(output.token_ids) == engine.bench.expected(request)


def test_generate_goes_beyond_the_queue_limit_by_waiting() -> None:
    engine = _Engine(max_queued=3)
    outputs = generate(engine, _requests(10))
    assert all(output.finish_reason is FinishReason.LENGTH for output in outputs)
    engine.client.close()


def test_stream_gives_the_same_as_generate(engine: _Engine) -> None:
    [request] = _requests(1, 8)

    async def read() -> list[int]:
        return [
            token async for output in engine.client.stream([request]) for token in output.token_ids
        ]

    assert asyncio.run(read()) == engine.bench.expected(request)


def test_leaving_a_stream_aborts_within_a_step(engine: _Engine) -> None:
    request = make_request("r", [1, 2, 3], 300)
    engine.gate.closes_after = 2

    async def leave() -> None:
        outputs = engine.client.stream([request])
        await anext(outputs)
        await outputs.aclose()
        engine.gate.open.set()

    asyncio.run(leave())
    engine.client.ask(EngineCore.flush).result(60)
    stats = engine.client.stats()
    assert stats.requests_aborted == 1
    assert stats.running == stats.waiting == 0
    assert stats.kv_free == stats.kv_capacity


def test_a_full_queue_refuses_at_once_and_queues_nothing() -> None:
    engine = _Engine(max_queued=2)
    engine.gate.open.clear()
    mailbox = ThreadMailbox()
    engine.client.submit(_requests(2), mailbox)
    with pytest.raises(QueueFullError, match="2 requests under way"):
        engine.client.submit([make_request("more", [1])], mailbox)
    engine.gate.open.set()
    for _ in range(8):
        mailbox.get()
    generate(engine, [make_request("more", [1])])
    engine.client.close()


def test_an_id_in_use_is_refused(engine: _Engine) -> None:
    engine.gate.open.clear()
    mailbox = ThreadMailbox()
    engine.client.submit(_requests(1), mailbox)
    with pytest.raises(InvalidRequestError, match="'r0' is under way"):
        engine.client.submit(_requests(1), mailbox)
    with pytest.raises(InvalidRequestError, match="'r0' is under way"):
        generate(engine, _requests(2))
    engine.gate.open.set()
    last = mailbox.get()
    while not last.finished:
        last = mailbox.get()
    assert last.finish_reason is FinishReason.LENGTH  # who came too late did not abort the first


def test_an_id_twice_in_one_submission_is_refused_and_nothing_is_queued(engine: _Engine) -> None:
    with pytest.raises(InvalidRequestError, match="'r0' is under way"):
        engine.client.submit([*_requests(2), *_requests(1)], ThreadMailbox())
    engine.client.ask(EngineCore.flush).result(60)
    assert engine.client.stats().running == engine.client.stats().waiting == 0
    assert len(generate(engine, _requests(2))) == 2


def test_a_crash_fails_what_runs_and_shows_in_health() -> None:
    engine = _Engine()
    engine.client.check_health()
    engine.gate.crash = True
    with pytest.raises(EngineDeadError, match="crashed: RuntimeError: the device is gone"):
        generate(engine, _requests(3))
    with pytest.raises(EngineDeadError, match="the device is gone"):
        engine.client.check_health()
    with pytest.raises(EngineDeadError, match="the device is gone"):
        generate(engine, _requests(1))
    with pytest.raises(EngineDeadError):
        engine.client.ask(EngineCore.flush)


def test_a_caller_who_gave_up_on_a_flush_does_not_kill_the_engine(engine: _Engine) -> None:
    engine.gate.open.clear()
    engine.client.submit(_requests(1), ThreadMailbox())
    abandoned = engine.client.ask(EngineCore.flush)
    assert abandoned.cancel()
    engine.gate.open.set()
    engine.client.ask(EngineCore.flush).result(60)
    engine.client.check_health()


def test_a_crash_with_an_abandoned_flush_still_tells_everybody() -> None:
    engine = _Engine()
    engine.gate.open.clear()
    mailbox = ThreadMailbox()
    engine.client.submit(_requests(1), mailbox)
    while not len(engine.bench.scheduler.running):
        time.sleep(0.001)
    abandoned, waited_for = engine.client.ask(EngineCore.flush), engine.client.ask(EngineCore.flush)
    assert abandoned.cancel()
    engine.gate.crash = True
    engine.gate.open.set()
    with pytest.raises(EngineDeadError):
        waited_for.result(60)


def test_a_late_abort_does_not_hit_a_later_request_of_the_same_id(engine: _Engine) -> None:
    [request] = _requests(1)
    done = ThreadMailbox()
    engine.client.submit([request], done)
    while not done.get().finished:
        pass
    engine.gate.open.clear()
    again = ThreadMailbox()
    engine.client.submit([request], again)
    engine.client.abort(request.request_id, done)
    engine.gate.open.set()
    outputs = [again.get()]
    while not outputs[-1].finished:
        outputs.append(again.get())
    assert outputs[-1].finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(("ids", "found"), [(["r1", "none"], ["r1"]), (None, ["r0", "r1", "r2"])])
def test_whoever_knows_the_ids_may_abort_and_the_submitter_is_told(
    engine: _Engine, ids: list[str] | None, found: list[str]
) -> None:
    engine.gate.open.clear()
    mailbox = ThreadMailbox()
    engine.client.submit(_requests(3, 60), mailbox)
    assert engine.client.abort_ids(ids) == len(found)
    engine.gate.open.set()
    ends: dict[str, FinishReason] = {}
    while len(ends) < 3:
        output = mailbox.get()
        if output.finish_reason is not None:
            ends[output.request_id] = output.finish_reason
    assert [name for name, why in sorted(ends.items()) if why is FinishReason.ABORT] == found
    assert engine.client.abort_ids(ids) == 0
    engine.client.close()
    with pytest.raises(EngineDeadError):
        engine.client.abort_ids(ids)


def test_the_books_are_checked_when_an_abort_leaves_nothing_to_do(engine: _Engine) -> None:
    lost = engine.bench.cache.acquire([7, 7, 7])
    lost.extend(3)
    engine.gate.open.clear()
    mailbox = ThreadMailbox()
    request = make_request("r", [1, 2, 3], 300)
    engine.client.submit([request], mailbox)
    engine.client.abort("r", mailbox)
    engine.gate.open.set()
    while not mailbox.get().finished:
        pass
    engine.client.ask(EngineCore.flush).result(60)
    assert engine.client.stats().requests_aborted == 1
    assert engine.client.stats().leaks >= 1


def test_closing_twice_and_from_several_threads_returns(engine: _Engine) -> None:
    closers = [threading.Thread(target=engine.client.close) for _ in range(4)]
    for closer in closers:
        closer.start()
    for closer in closers:
        closer.join(60)
        assert not closer.is_alive()
    engine.client.close()


_LEFT_OPEN = """
import atexit, sys
from radixlm.core.errors import EngineDeadError
from tests.contract.test_engine_client import _Engine, _requests

def look():  # runs last, since it is registered first
    try:
        engine.client.check_health()
    except EngineDeadError as error:
        print(error)

atexit.register(look)
engine = _Engine()
next(engine.client.run(_requests(1, 400)))
raise SystemExit(7)
"""


@pytest.mark.slow
def test_a_program_that_forgets_to_close_still_ends_in_order() -> None:
    command = [sys.executable, "-c", _LEFT_OPEN]
    done = subprocess.run(  # noqa: S603
        command, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (7, "the engine was shut down\n"), done.stderr


def test_a_stream_whose_loop_is_gone_does_not_stop_the_others(engine: _Engine) -> None:
    engine.gate.open.clear()
    loop = asyncio.new_event_loop()
    outputs = engine.client.stream([make_request("orphan", [9], 20)])
    reading = asyncio.ensure_future(anext(outputs), loop=loop)
    loop.run_until_complete(asyncio.sleep(0.01))
    reading.cancel()
    mailbox = TaskMailbox(loop)
    engine.client.submit([make_request("deaf", [8], 20)], mailbox)
    with suppress(asyncio.CancelledError):
        loop.run_until_complete(reading)
    loop.close()
    engine.gate.open.set()
    [output] = generate(engine, _requests(1))
    assert output.finish_reason is FinishReason.LENGTH


class _Loop:
    """Counts how often it is woken; `gone`: it is closed."""

    def __init__(self, *, gone: bool = False) -> None:
        self.woken = 0
        self.gone = gone

    def call_soon_threadsafe(self, call: Callable[..., None], *args: object) -> None:
        self.woken += 1
        if self.gone:
            raise RuntimeError("Event loop is closed")
        call(*args)


def test_a_loop_is_woken_once_for_all_its_mailboxes() -> None:
    closed, loop = _Loop(gone=True), _Loop()
    first, second, deaf = TaskMailbox(loop), TaskMailbox(loop), TaskMailbox(closed)  # type: ignore[arg-type]
    outputs = [RequestOutput(name, token_ids=(i,)) for i, name in enumerate("aab")]
    deliver_all({deaf: outputs[:1], first: outputs[:2], second: outputs[2:]})
    assert (closed.woken, loop.woken) == (1, 1)
    assert asyncio.run(first.get())[0].token_ids == (0, 1)
    assert asyncio.run(second.get())[0].token_ids == (2,)


def test_closing_ends_what_runs_with_an_error() -> None:
    engine = _Engine()
    engine.gate.open.clear()
    failures: list[Exception] = []

    def wait() -> None:
        try:
            generate(engine, [make_request("r", [1, 2, 3], 400)])
        except EngineDeadError as error:
            failures.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    while not engine.client.stats().waiting and not engine.client.stats().running:
        engine.gate.open.wait(0.01)
        if engine.bench.scheduler.has_work:
            break
    closer = threading.Thread(target=engine.client.close)
    closer.start()
    engine.gate.open.set()
    closer.join(60)
    waiter.join(60)
    assert not waiter.is_alive()
    assert "shut down" in str(failures[0])


def test_a_slow_reader_finds_everything_joined(engine: _Engine) -> None:
    [request] = _requests(1, 50)

    async def read() -> tuple[int, list[int]]:
        count, tokens = 0, []
        async for output in engine.client.stream([request]):
            count += 1
            tokens += output.token_ids
            while engine.client.stats().running:
                await asyncio.sleep(0.001)
        return count, tokens

    count, tokens = asyncio.run(read())
    assert tokens == engine.bench.expected(request)
    assert count < 50


def test_whether_there_is_room_is_known_before_submitting() -> None:
    engine = _Engine(max_queued=2)
    engine.gate.open.clear()
    engine.client.check_room()
    mailbox = ThreadMailbox()
    engine.client.submit(_requests(2), mailbox)
    with pytest.raises(QueueFullError, match="2 requests under way"):
        engine.client.check_room()
    engine.gate.open.set()
    for _ in range(8):
        mailbox.get()
    engine.client.check_room()
    engine.client.close()
    with pytest.raises(EngineDeadError):
        engine.client.check_room()
