"""What pools of other sizes would have had cached, predicted from when tokens were last used."""

from __future__ import annotations

import pytest

from radixlm.cache import RadixCache
from radixlm.cache.radix.tree_stats import Reuse
from radixlm.core.errors import InvariantError
from radixlm.core.misses import POOL_SCALES
from tests.invariants import check

SHARED = [1, 2, 3, 4]


def serve(cache: RadixCache, tokens: list[int], namespace: str | None = None) -> tuple[int, ...]:
    lease = cache.acquire(tokens, namespace)
    assert lease.extend(len(tokens) - lease.length) is not None
    lease.commit(len(tokens))
    lease.release()
    check(cache)
    return lease.expected


def prompt(kind: int, size: int = 8) -> list[int]:
    return [100 * kind + at for at in range(size)]


def test_nothing_is_expected_of_what_was_never_seen() -> None:
    assert serve(RadixCache(64), prompt(1)) == (0, 0, 0, 0)


def test_what_comes_again_at_once_is_held_by_every_pool() -> None:
    cache = RadixCache(64)
    serve(cache, prompt(1))
    assert serve(cache, prompt(1)) == (7, 7, 7, 7)  # the last token is computed in any case


def test_each_pool_holds_as_much_as_fits() -> None:
    """Pools of 16, 32, 64 and 128 tokens, 40 of other prompts in between."""
    cache = RadixCache(32)
    serve(cache, prompt(0))
    for kind in range(1, 6):
        serve(cache, prompt(kind))
    assert cache.tree.ghosts.size == 16
    assert serve(cache, prompt(0)) == (0, 0, 7, 7)


@pytest.mark.slow
@pytest.mark.parametrize("scale", range(len(POOL_SCALES)))
def test_as_a_pool_of_that_size_does(scale: int) -> None:
    """A little traffic, over and over: hits in all are as in a real pool of that size."""
    sizes = [int(64 * factor) for factor in POOL_SCALES]
    traffic = [[*SHARED, *prompt(1 + at * at % 13, 6 + at % 5)] for at in range(400)]
    small, other = RadixCache(64), RadixCache(sizes[scale])
    expected = sum(serve(small, tokens)[scale] for tokens in traffic)
    found = 0
    for tokens in traffic:
        lease = other.acquire(tokens)
        found += lease.cached
        assert lease.extend(len(tokens) - lease.length) is not None
        lease.commit(len(tokens))
        lease.release()
    asked = sum(map(len, traffic))
    assert abs(expected - found) <= 0.03 * asked, (expected / asked, found / asked)


def test_what_runs_is_held_by_every_pool() -> None:
    cache = RadixCache(32)
    serve(cache, prompt(1))
    running = cache.acquire(prompt(1))
    assert running.extend(1) is not None
    for kind in range(2, 5):
        serve(cache, prompt(kind))
    lease = cache.acquire(prompt(1))
    assert lease.expected == (7, 7, 7, 7)
    lease.release()
    running.release()
    check(cache)


def test_running_requests_take_room() -> None:
    cache = RadixCache(32)
    serve(cache, prompt(1))
    running = cache.acquire(prompt(9, 12))
    assert running.extend(12) is not None
    lease = cache.acquire(prompt(1))
    assert lease.expected == (4, 7, 7, 7)
    lease.release()
    running.release()


def test_whole_pages() -> None:
    cache = RadixCache(64, 4)
    serve(cache, prompt(1, 12))
    assert serve(cache, prompt(1, 12)) == (8, 8, 8, 8)


def test_namespaces_share_nothing_but_the_room() -> None:
    cache = RadixCache(32)
    serve(cache, prompt(1))
    assert serve(cache, prompt(1), "other") == (0, 0, 0, 0)
    serve(cache, prompt(2), "other")
    assert serve(cache, prompt(1)) == (0, 7, 7, 7)


def test_forgotten_is_as_never_seen() -> None:
    cache = RadixCache(16, ghost_budget=8)
    for kind in range(5):
        serve(cache, prompt(kind))
    assert serve(cache, prompt(0)) == (0, 0, 0, 0)
    cache.flush()
    check(cache)


def test_no_epoch_begins_before_what_is_counted_already() -> None:
    """Else tokens would be taken from another epoch than they were put into."""
    reuse = Reuse(64)
    for use in (5, 3):
        reuse.enter(use, 2)
    for use in (5, 3):
        reuse.leave(use, 2)
    assert set(reuse.tokens) == {0}


def test_check_notices_tokens_in_the_wrong_epoch() -> None:
    cache = RadixCache(64)
    serve(cache, prompt(1))
    serve(cache, prompt(2, 5))
    [reuse] = [each for each in cache.tree.observers if isinstance(each, Reuse)]
    reuse.tokens.reverse()
    with pytest.raises(InvariantError, match="uses are counted"):
        check(cache)


def test_books_stay_small() -> None:
    """However often tokens are used, few epochs are counted, and every token once."""
    reuse = Reuse(64)
    uses = 10_000
    for use in range(1, uses):
        reuse.enter(use, 2)
        if use > 100:
            reuse.leave(use - 100, 2)
    assert len(reuse.begins) <= 1_280
    assert sum(reuse.tokens) == 200
