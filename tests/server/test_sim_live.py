"""A trace played against a server."""

from __future__ import annotations

import asyncio
import json

import httpx
import numpy as np
import pytest
from click.testing import CliRunner

from radixlm.cli.sim_command import command
from radixlm.core.errors import ConfigError
from radixlm.sim import live as live_module
from radixlm.sim.calls import Problems, TraceCall, TraceSession
from radixlm.sim.live import Player, ServerTarget, as_answered, played
from radixlm.sim.sources import TraceSource
from tests.long_answers import long_answer
from tests.server_support import live


def key(*ids: int) -> np.ndarray:
    return np.array(ids, dtype=np.int32)


def test_prompts_go_on_from_what_was_really_answered():
    first, second = TraceCall(key(1, 2), key(3, 4)), TraceCall(key(1, 2, 3, 4, 5), key(6))
    said = [(first, first.prompt, key(30, 40)), (second, key(1, 2, 30, 40, 5), key(60))]
    assert as_answered(key(1, 2, 3, 4, 5, 6, 7), said).tolist() == [1, 2, 30, 40, 5, 60, 7]
    assert as_answered(key(1, 2, 3, 4, 9), said).tolist() == [1, 2, 30, 40, 9]
    assert as_answered(key(1, 2, 9), said).tolist() == [1, 2, 9]


def test_each_turn_finds_the_one_before(client):
    first = TraceCall(key(*range(1, 40)), key(*range(50, 58)))
    again = TraceCall(np.concatenate((first.prompt, first.answer, key(7))), key(60, 61), gap=0.01)
    sessions = [TraceSession((first, again), at=0.0), TraceSession((first,))]
    problems = Problems()

    async def play() -> Player:
        transport = httpx.ASGITransport(client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            player = Player(ServerTarget(http), problems, users=1)
            await player.run(sessions)
            return player

    player = asyncio.run(play())
    assert not problems.shown
    assert (player.calls, player.generated) == (3, 18)
    assert player.prompt_tokens == 39 + 48 + 39
    # The last token of a prompt, and of an answer, is not found.
    assert player.cached_tokens == 46 + 38
    assert len(player.times.first) == 3


def test_a_call_that_is_refused_is_told_and_the_rest_goes_on(client):
    long = TraceCall(np.ones(9_000, dtype=np.int32), key(1), where="trace:1")
    problems = Problems()

    async def play() -> Player:
        transport = httpx.ASGITransport(client.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as http:
            player = Player(ServerTarget(http), problems)
            await player.run(
                [
                    TraceSession((long, TraceCall(key(1, 2), key(3)))),
                ]
            )
            return player

    assert asyncio.run(play()).calls == 1
    assert problems.shown[0].startswith("trace:1: the server gives no answer")
    assert "400" in problems.shown[0]


def test_the_command_plays_a_trace_and_says_what_came_of_it(engine, tmp_path):
    path = tmp_path / "trace.jsonl"
    lines = [
        {"timestamp": 5, "token_ids": list(range(1, 40)), "output_length": 3},
        {"gap": 5, "token_ids": [*range(1, 40), 8, 9], "output_length": 2},
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with live(engine) as url:
        arguments = [str(path), "--url", url, "--json", str(tmp_path / "row.json")]
        done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    row = json.loads((tmp_path / "row.json").read_text())
    assert "trace.jsonl: 2 calls, 80 prompt tokens, costs of http" in done.output
    assert (row["cached_tokens"], row["output_tokens"], row["kv_tokens"]) == (39, 5, 4_000)
    assert row["ttft_ms_p50"] > 0


def test_a_trace_of_which_no_call_is_answered_is_an_error(engine, tmp_path):
    path = tmp_path / "trace.jsonl"
    line = json.dumps({"token_ids": [1] * 9_000, "output_length": 3}) + "\n"
    path.write_text(2 * line)
    with live(engine) as url:
        done = CliRunner().invoke(command, [str(path), "--url", url])
    assert done.exit_code == 1
    assert "the server gives no answer" in done.output
    assert f"{url} answered no call; 2 calls failed" in done.output


def test_a_server_that_says_too_much_is_given_up(monkeypatch):
    monkeypatch.setattr(live_module, "MOST_BYTES", 1_000)
    with long_answer(2_000) as url, pytest.raises(ConfigError, match="more than 1,000 bytes"):
        played(TraceSource("chats", limit=1), url, None, users=1)


def test_without_a_server_it_says_so():
    with pytest.raises(ConfigError, match="says nothing of itself"):
        CliRunner().invoke(
            command,
            ["chats", "--limit", "1", "--url", "http://127.0.0.1:9"],
            catch_exceptions=False,
        )
