"""`--record-trace`: what ended is in a file that the simulator reads."""

from __future__ import annotations

import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radixlm.assembly import AsyncEngine
from radixlm.core.errors import ConfigError
from radixlm.core.keys import common_prefix
from radixlm.formats.private_files import open_private
from radixlm.formats.trace_lines import Recorded
from radixlm.server.config.server_config import ServerConfig
from radixlm.server.insight import recorder as module
from radixlm.server.insight.recorder import Recorder, recording
from radixlm.sim.calls import Problems, TraceSession
from radixlm.sim.sources import TraceSource
from tests.server_support import Client


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def recorded(path: Path) -> list[TraceSession]:
    problems = Problems()
    sessions = list(TraceSource(str(path)).open(problems))
    assert not problems.count
    return sessions


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "trace.jsonl"


@contextmanager
def record(path: Path, engine: AsyncEngine, **flags: Any) -> Iterator[Client]:
    """A client of a server that records; the file is whole at the end."""
    with recording(ServerConfig(record_trace=str(path), **flags)) as made:
        yield Client(engine, recorder=made)


def test_ids_times_names_and_hints_are_recorded_and_no_text(path, engine):
    with record(path, engine) as client:
        client.complete("hello", max_tokens=3, cache_salt="secret", ignore_eos=True)
        client.chat("a question", max_tokens=4, ignore_eos=True)
        client.generate("hello", sampling_params={"max_new_tokens": 2, "ignore_eos": True})
    first, second, third = recorded(path)
    tokens = engine.tokenizer.encode("hello").tolist()
    assert first.calls[0].prompt.tolist() == third.calls[0].prompt.tolist() == tokens
    assert [each.calls[0].answer.size for each in (first, second, third)] == [3, 4, 2]
    assert first.calls[0].max_tokens == 3
    assert first.at <= second.at <= third.at
    assert first.calls[0].namespace != third.calls[0].namespace
    text = path.read_text()
    assert "secret" not in text
    assert "question" not in text
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_simulation_finds_what_the_server_found(path, engine):
    cached = []
    with record(path, engine) as client:
        for turn in range(5):
            answer = client.complete("the same beginning " + "and more " * turn, max_tokens=2)
            cached.append(answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"])
    prompts = [session.calls[0].prompt.tolist() for session in recorded(path)]
    shared = [0]
    for before, after in pairwise(prompts):
        shared.append(len(before))
        assert after[: len(before)] == before
    assert cached == shared


def test_hashed_ids_share_as_far_as_the_tokens_do(path, engine):
    with record(path, engine, record_trace_hashed=True) as client:
        for text in ("hello there", "hello you", "other"):
            client.complete(text, max_tokens=2)
    (one,), (two,), (three,) = (session.calls for session in recorded(path))
    hello, you = (engine.tokenizer.encode(text) for text in ("hello there", "hello you"))
    common = common_prefix(hello, you)
    assert 0 < common < you.size
    assert one.prompt[:common].tolist() == two.prompt[:common].tolist()
    assert not set(one.prompt[common:].tolist()) & set(two.prompt.tolist())
    assert not set(one.prompt.tolist()) & set(three.prompt.tolist())
    assert not set(one.prompt.tolist()) & set(range(1_000))
    assert lines(path)[0] == {"radixlm_trace": 1, "hashed": True}


def test_each_choice_is_a_request(path, engine):
    with record(path, engine) as client:
        client.complete("hello", n=3, max_tokens=2)
        text = client.get("/metrics").text
    assert len(recorded(path)) == 3
    assert re.search(r"recorded_requests_total\{.*\} [0-3]\.0", text)
    assert re.search(r"recorded_dropped_requests_total\{.*\} 0\.0", text)


def request(at: float = 0.0) -> Recorded:
    return Recorded(at, np.arange(50, dtype=np.int32), np.arange(3, dtype=np.int32))


def recorder(path: Path, limit_bytes: int) -> Recorder:
    file = open_private(path)
    return Recorder(file, file.tell(), hashed=False, limit_bytes=limit_bytes)


def test_a_file_grows_to_its_limit_and_no_further(path, caplog):
    made = recorder(path, 1_000)
    for _ in range(50):
        made.note(request())
    made.close()
    assert path.stat().st_size <= 1_000
    assert made.counts.requests == len(lines(path)) - 1 > 0
    assert made.counts.requests + made.counts.dropped == 50
    assert caplog.text.count("nothing is recorded") == 1


def test_another_start_goes_on_behind_what_is_there(path):
    for _ in range(2):
        made = recorder(path, 10_000)
        made.note(request())
        made.close()
    assert len(recorded(path)) == 2


def test_nobody_waits_for_a_slow_disk(tmp_path, monkeypatch):
    """A pipe that nobody reads takes 64 KiB."""
    monkeypatch.setattr(module, "MOST_WAITING", 4)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    made = Recorder(pipe.open("wb"), 0, hashed=False, limit_bytes=10_000_000)
    for _ in range(2_000):
        made.note(request())
    assert made.counts.dropped > 1_000
    os.close(reader)  # the disk fails
    made.close()
    assert made.counts.requests + made.counts.dropped == 2_000


def test_a_file_that_can_not_be_written_is_refused(tmp_path):
    flags = ServerConfig(record_trace=str(tmp_path))
    with pytest.raises(ConfigError, match=r"--record-trace .*: Is a directory"), recording(flags):
        pass


def test_a_file_that_others_may_read_is_refused(path):
    path.touch(0o644)
    flags = ServerConfig(record_trace=str(path))
    refusal = r"--record-trace .*: others may read or write it \(mode 0644\): chmod go= "
    with pytest.raises(ConfigError, match=refusal), recording(flags):
        pass


def test_without_the_flag_there_is_none():
    with recording(ServerConfig()) as made:
        assert made is None
