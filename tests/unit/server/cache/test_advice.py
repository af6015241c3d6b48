"""The window of /cache/advice: groups, sentences, bounds."""

from __future__ import annotations

from dataclasses import replace
from weakref import WeakSet

import pytest

from radixlm.core.clock import VirtualClock
from radixlm.core.misses import MissReason, MissReport
from radixlm.engine.engine_stats import EngineStats
from radixlm.observe.causes import Cause, Finding, Spot
from radixlm.server.insight.advice import WINDOW_REQUESTS, WINDOW_SECONDS, MissWindow

LOOKED = Finding(Cause.DATE_TIME, 18, Spot(0, "system", 2), where="the end of the system prompt")


class Tenant(str):
    """A name of which one can see whether it is still in memory."""


class Looks:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self) -> Finding:
        self.count += 1
        return LOOKED


def diverged(position: int = 18, prompt: int = 5_000) -> MissReport:
    return MissReport(prompt, position, MissReason.DIVERGED, position, shared=b"same")


def test_a_sentence_for_each_group() -> None:
    window, looks = MissWindow(VirtualClock()), Looks()
    for _ in range(400):
        window.add("", diverged(), looks, shows_text=False)
    window.add("", MissReport(100, 0, MissReason.NEW, 0), looks, shows_text=False)
    told = window.advice(EngineStats(), None)
    assert looks.count == 3
    dated, new = (entry["text"] for entry in told["advice"])
    assert dated == (
        "400 requests diverge at message 0 (system), token 18: a date or time changes per "
        "request; 2.0 M tokens computed again (100% of all); move it to the end of the system "
        "prompt."
    )
    assert new == "1 request: nothing like it was cached before; 100 tokens computed (0% of all)."
    assert (told["requests"], told["capacity"]) == (401, [])


def test_of_what_was_evicted_only_that_costs() -> None:
    window, looks = MissWindow(VirtualClock()), Looks()
    for evicted in (40, 60, 2):
        miss = MissReport(100, 0, MissReason.EVICTED, 0, evicted=evicted, evicted_ago=1.0, hits=0)
        window.add("", miss, looks, shows_text=False)
    gone, new = window.advice(EngineStats(), None)["advice"]
    assert (gone["cause"], gone["requests"], gone["tokens"]) == (Cause.EVICTED, 2, 100)
    assert (new["cause"], new["requests"], new["tokens"]) == (Cause.FIRST_SEEN, 1, 100)


def test_what_can_be_helped_comes_first() -> None:
    window, looks = MissWindow(VirtualClock()), Looks()
    window.add("", MissReport(9_000, 0, MissReason.NEW, 0), looks, shows_text=False)
    window.add("", diverged(), looks, shows_text=False)
    listed = window.advice(EngineStats(), None)["advice"]
    assert [entry["cause"] for entry in listed] == [Cause.DATE_TIME, Cause.FIRST_SEEN]


def test_places_of_one_message_are_told_together() -> None:
    window = MissWindow(VirtualClock())
    for position in (18, 20, 19):
        window.add("", diverged(position), Looks(), shows_text=False)
    [entry] = window.advice(EngineStats(), None)["advice"]
    assert "tokens 18 to 20" in entry["text"]
    assert (entry["token"], entry["requests"]) == (18, 3)


def test_so_many_looks_a_second_at_most() -> None:
    clock = VirtualClock()
    window, looks = MissWindow(clock), Looks()
    for position in range(500):
        window.add("", diverged(position), looks, shows_text=False)
    assert looks.count <= 21
    clock.advance(1)
    for position in range(500):
        window.add("", diverged(position), looks, shows_text=False)
    assert looks.count <= 27


def test_of_the_last_minutes_and_requests() -> None:
    clock = VirtualClock()
    window = MissWindow(clock)
    remembered: WeakSet[Tenant] = WeakSet()
    for position in range(WINDOW_REQUESTS + 10):
        tenant = Tenant(position)
        remembered.add(tenant)
        window.add(tenant, diverged(position), Looks(), shows_text=False)
    del tenant
    assert window.advice(EngineStats(), None)["requests"] <= WINDOW_REQUESTS
    assert len(remembered) <= WINDOW_REQUESTS
    clock.advance(WINDOW_SECONDS + 1)
    assert window.advice(EngineStats(), None)["requests"] == 0
    assert len(remembered) == 0


def test_capacity_is_of_the_window() -> None:
    clock = VirtualClock()
    window = MissWindow(clock)
    for minute in range(60):
        clock.advance(60)
        counted = (0, 0, 0, 0) if minute < 30 else (10, 20, 30, 40)
        now = EngineStats(
            kv_capacity=8,
            prompt_tokens=100 * (minute + 1),
            expected_tokens=tuple(tokens * (minute - 29) for tokens in counted),
        )
        window.sample(now)
    rates = [round(size["hit_rate"], 2) for size in window.advice(now, None)["capacity"]]
    assert rates == [0.1, 0.2, 0.3, 0.4]


@pytest.mark.parametrize(
    ("found", "expected", "pays"),
    [
        (300, (200, 300, 400, 405), ["--kv-tokens 16", "--host-kv-tokens 24"]),
        (300, (200, 400, 400, 400), ["--eviction-policy lru"]),
        (300, (295, 300, 301, 302), ["a smaller pool would do, --kv-tokens 4"]),
        (300, (200, 300, 305, 309), []),
    ],
)
def test_what_pays_is_said(found: int, expected: tuple[int, ...], pays: list[str]) -> None:
    window = MissWindow(VirtualClock())
    now = EngineStats(
        kv_capacity=8, prompt_tokens=1_000, cached_tokens=found, expected_tokens=expected
    )
    said = window.advice(now, None)["pays"]
    assert [text.startswith(begin) for text, begin in zip(said, pays, strict=True)] == [
        True for _ in pays
    ]
    with_host = window.advice(replace(now, host_capacity=9), None)["pays"]
    assert not any("--host" in text for text in with_host)
    assert MissWindow(VirtualClock()).advice(EngineStats(), None)["pays"] == []


def test_nothing_is_promised_of_pools_beside_states() -> None:
    now = EngineStats(
        kv_capacity=8, prompt_tokens=1_000, cached_tokens=0, expected_tokens=(200, 400, 400, 400)
    )
    assert MissWindow(VirtualClock()).advice(now, None)["pays"]
    beside = replace(now, mamba_capacity=3)
    assert MissWindow(VirtualClock()).advice(beside, None)["pays"] == []


def test_a_place_that_is_full_of_states_is_named() -> None:
    now = EngineStats(
        kv_capacity=8,
        prompt_tokens=1_000,
        cached_tokens=300,
        expected_tokens=(200, 300, 400, 405),
        host_capacity=1_000,
        host_tokens=950,
        host_state_tokens=610,
        mamba_capacity=3,
    )
    [said] = MissWindow(VirtualClock()).advice(now, None)["pays"]
    assert said.startswith(
        "--host-kv-tokens: host memory is full, checkpoints of states take 61% of its 1000 tokens"
    )
    roomy = replace(now, host_tokens=700)
    assert not MissWindow(VirtualClock()).advice(roomy, None)["pays"]
