"""Breakpoints of requests: pinned in the step that completes the prompt; nothing stays behind."""

from __future__ import annotations

import pytest

from radixlm.core.request import Breakpoint, GenerateRequest
from tests.engines import Bench, make_request

KEY = [1, 2, 3, 4, 5, 6]
MARKS = (Breakpoint(6, 60.0), Breakpoint(2, 30.0))


def marked(name: str = "r", tenant: str = "") -> GenerateRequest:
    return make_request(name, KEY, tenant=tenant, breakpoints=MARKS)


def is_clean(bench: Bench) -> bool:
    """What is locked is what pins hold, and nothing is kept for a later request of the name."""
    usage = bench.cache.usage()
    held = usage.private == 0 and usage.locked == bench.cache.tree.pinned_size
    bench.core.add(make_request("r", KEY))
    return held and not bench.run()["r"].kept and not bench.core.stats().leaks


def test_kept_in_the_step_that_completes_the_prompt() -> None:
    bench = Bench(budget=4, pin_budget=8)
    bench.core.add(marked())
    assert bench.step() == []
    assert bench.cache.tree.pinned_size == 0
    [output] = bench.step()
    assert output.kept == (Breakpoint(2, 30.0), Breakpoint(6, 60.0))
    assert bench.cache.tree.pinned_size == 6
    assert all(not output.kept for output in bench.step())
    bench.run()
    assert is_clean(bench)


@pytest.mark.parametrize("steps", [0, 1, 2])
def test_aborted(steps: int) -> None:
    """While it waits, within its prompt, and behind it: then what is kept stays."""
    bench = Bench(budget=4, pin_budget=8)
    bench.core.add(marked())
    for _ in range(steps):
        bench.step()
    assert bench.core.abort("r") is not None
    assert bench.cache.tree.pinned_size == (6 if steps == 2 else 0)
    assert is_clean(bench)


@pytest.mark.parametrize("enabled", [True, False])
def test_without_room_or_cache_the_request_is_served(enabled: bool) -> None:
    bench = Bench(enabled=enabled, pin_budget=0 if enabled else 8)
    bench.core.add(marked())
    output = bench.run()["r"]
    assert (output.kept, len(output.token_ids)) == ((), 4)
    assert is_clean(bench)


def test_a_breakpoint_within_the_first_page_is_let_go() -> None:
    bench = Bench(page_size=4, pin_budget=8)
    bench.core.add(marked())
    assert bench.run()["r"].kept == (Breakpoint(4, 60.0),)
    assert is_clean(bench)
