"""explained(): why a prompt would miss, without running it and without a trace."""

from __future__ import annotations

from radixlm.cache import RadixCache
from radixlm.core.keys import Key, as_key
from radixlm.core.misses import MissReason
from tests.tree_pictures import tree_snapshot


def key(*tokens: int) -> Key:
    return as_key(tokens)


def serve(cache: RadixCache, *tokens: int, namespace: str | None = None) -> None:
    lease = cache.acquire(key(*tokens), namespace)
    assert lease.extend(len(tokens) - lease.length) is not None
    lease.commit(len(tokens))
    lease.release()


def test_as_the_request_would_learn_it_and_without_a_trace() -> None:
    cache = RadixCache(64)
    serve(cache, *range(1, 21))
    before = tree_snapshot(cache.tree), cache.tree.stats.matches, cache.tree.stats.splits
    asked = cache.explain(key(1, 2, 3, 99, 98))
    assert (tree_snapshot(cache.tree), cache.tree.stats.matches, cache.tree.stats.splits) == before
    assert asked.holders == {}
    lease = cache.acquire(key(1, 2, 3, 99, 98))
    assert lease.why() == asked.report
    assert asked.report.reason is MissReason.DIVERGED
    assert tuple(memoryview(asked.report.shared).cast("i")) == (1, 2, 3)


def test_the_tokens_before_and_what_follows_through_the_newest_branch() -> None:
    cache = RadixCache(256)
    serve(cache, *range(1, 31), 41, 42)
    serve(cache, *range(1, 31), 51, 52)
    report = cache.explain(key(*range(1, 26), 99, 98)).report
    assert tuple(memoryview(report.shared).cast("i")) == tuple(range(1, 26))
    assert tuple(memoryview(report.cached_next).cast("i")) == (26, 27, 28, 29, 30, 51, 52)
    assert report.requested_continuation == (99,)


def test_a_cache_that_is_off() -> None:
    cache = RadixCache(64, enabled=False)
    report = cache.explain(key(1, 2)).report
    assert (report.reason, report.cached) == (MissReason.DISABLED, 0)


def test_other_namespaces_are_told_of_only_when_asked() -> None:
    cache = RadixCache(64)
    serve(cache, 1, 2, 3, 4, namespace="theirs")
    assert cache.explain(key(1, 2, 3, 9)).holders == {}
    asked = cache.explain(key(1, 2, 3, 9), everywhere=True)
    assert (asked.report.reason, asked.holders) == (MissReason.NEW, {"theirs": 3})
