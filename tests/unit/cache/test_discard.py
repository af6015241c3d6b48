"""What a failed request spoiled is dropped, wherever the tree has it; what others hold stays."""

from __future__ import annotations

import pytest

from radixlm.cache import RadixCache
from tests.invariants import check


def _add(cache: RadixCache, key: list[int]) -> None:
    lease = cache.acquire(key)
    if lease.cached < len(key):
        lease.extend(len(key) - lease.cached)
    lease.commit(len(key))
    lease.release()


@pytest.mark.parametrize("page_size", [1, 2])
@pytest.mark.parametrize("keep", [0, 1, 2, 4, 5, 6, 8, 9])
def test_what_comes_after_is_gone(keep: int, page_size: int) -> None:
    cache = RadixCache(64, page_size)
    keys = [[1, 2, 3, 4, 5, 6, 7, 8], [1, 2, 3, 4, 5, 6, 9, 9], [1, 2, 8, 8], [7, 7]]
    for key in keys:
        _add(cache, key)
    cache.discard(keys[0], None, keep)
    check(cache)
    kept = min(cache.round_down(keep), 8)
    assert cache.match(keys[0], max_match=8).length == kept
    # All below a spoiled token was computed from it; other branches have nothing to do with it.
    assert cache.match(keys[1], max_match=8).length == (8 if kept >= 6 else kept)
    assert cache.match(keys[2], max_match=4).length == (4 if kept >= 2 else kept)
    assert cache.match(keys[3], max_match=2).length == 2


def test_what_others_hold_stays_until_they_let_go() -> None:
    cache = RadixCache(64)
    key = [1, 2, 3, 4, 5, 6]
    _add(cache, key)
    held = cache.acquire([1, 2, 3, 4, 9])
    cache.discard(key, None, 2)
    check(cache)
    assert cache.match(key, max_match=6).length == 4
    held.release()
    cache.discard(key, None, 2)
    check(cache)
    assert cache.match(key, max_match=6).length == 2
