"""RadixCache and Lease: what is refused, and that `check()` bites."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from radixlm.cache import Lease, RadixCache
from radixlm.core.errors import (
    CacheError,
    ConfigError,
    InvalidKeyError,
    InvariantError,
    LeaseClosedError,
)
from tests.invariants import check


def compute(lease: Lease) -> None:
    assert lease.extend(lease.key.size - lease.length) is not None
    lease.commit(lease.key.size)


class TestErrors:
    @pytest.mark.parametrize(
        "call",
        [
            lambda lease: lease.release(),
            lambda lease: lease.extend(1),
            lambda lease: lease.commit(1),
        ],
    )
    def test_a_released_lease(self, call: Callable[[Lease], object]) -> None:
        cache = RadixCache(16)
        lease = cache.acquire([1, 2, 3])
        compute(lease)
        lease.release()
        before = (cache.usage(), cache.tree.version)
        with pytest.raises(LeaseClosedError, match="released before"):
            call(lease)
        assert (cache.usage(), cache.tree.version) == before
        check(cache)

    @pytest.mark.parametrize("n_tokens", [0, -3])
    def test_extend_by_nothing(self, n_tokens: int) -> None:
        cache = RadixCache(16)
        with pytest.raises(CacheError, match=f"got {n_tokens}"):
            cache.acquire([1]).extend(n_tokens)
        check(cache)

    def test_commit_of_what_was_not_computed(self) -> None:
        cache = RadixCache(16)
        lease = cache.acquire([1, 2, 3, 4])
        lease.extend(2)
        with pytest.raises(CacheError, match="commit of 3 tokens: 2 have slots, the key has 4"):
            lease.commit(3)
        lease.extend(4)
        with pytest.raises(CacheError, match="commit of 5 tokens: 6 have slots, the key has 4"):
            lease.commit(5)
        assert lease.committed == 0
        check(cache)

    @pytest.mark.parametrize("key", [[], [-1], [[1]], [0.5], [2**31]])
    def test_bad_key(self, key: list[int]) -> None:
        cache = RadixCache(16)
        for call in (cache.acquire, cache.match):
            with pytest.raises(InvalidKeyError):
                call(key)
        assert cache.tree.node_count == 0
        check(cache)

    @pytest.mark.parametrize("n_tokens", [0, -1, 4])
    def test_more_or_less_tokens_known_than_there_are(self, n_tokens: int) -> None:
        cache = RadixCache(16)
        with pytest.raises(InvalidKeyError, match=f"{n_tokens} tokens are known.* of a key of 3"):
            cache.acquire([1, 2, 3], n_tokens=n_tokens)
        assert cache.tree.node_count == 0
        check(cache)

    @pytest.mark.parametrize("page_size", [1, 4])
    def test_negative_ids_are_not_committed(self, page_size: int) -> None:
        cache = RadixCache(32, page_size)
        lease = cache.acquire(np.array([5] * 8 + [-2] * 8, dtype=np.int32))
        lease.extend(16)
        before = (cache.usage(), cache.tree.version, cache.tree.node_count, lease.slots.tolist())
        with pytest.raises(InvalidKeyError, match="got -2"):
            lease.commit(16)
        after = (cache.usage(), cache.tree.version, cache.tree.node_count, lease.slots.tolist())
        assert (after, lease.committed) == (before, 0)
        check(cache)
        lease.commit(8)
        with pytest.raises(InvalidKeyError, match="got -2"):
            lease.commit(12)
        assert lease.committed == 8
        check(cache)
        lease.release()
        assert cache.match([5] * 9).length == 8
        check(cache)

    @pytest.mark.parametrize(("capacity", "page_size"), [(0, 1), (3, 4), (-1, 1)])
    def test_a_pool_without_a_page(self, capacity: int, page_size: int) -> None:
        with pytest.raises(ConfigError, match=f"{capacity} slots"):
            RadixCache(capacity, page_size)

    def test_page_size(self) -> None:
        with pytest.raises(ConfigError, match="got 3"):
            RadixCache(16, 3)


class TestCheck:
    """`check()` bites."""

    @pytest.mark.parametrize(
        ("spoil", "message"),
        [
            (lambda c, _: c.allocator.allocate(1), "does not add up"),
            (lambda c, _: setattr(c, "_private", 3), "does not add up"),
            (lambda _, lease: setattr(lease, "_allocated", 3), "books say"),
            (lambda c, lease: c.leases.pop(lease), "books say"),
            (lambda _, lease: setattr(lease, "node", lease.node.parent), "locks for"),
            (lambda _, lease: lease._slots.__setitem__(0, 9), "slots differ"),
            (lambda _, lease: lease._slots.__setitem__(2, 9), "somebody else holds"),
            (lambda _, lease: lease._slots.__setitem__(2, -1), "outside of the pool"),
            (lambda _, lease: lease._slots.__setitem__(2, 3), "somebody else holds"),
        ],
    )
    def test_broken_by_hand(
        self, spoil: Callable[[RadixCache, Lease], object], message: str
    ) -> None:
        cache = RadixCache(16)
        lease = cache.acquire([1, 2, 3, 4])
        lease.extend(4)
        lease.commit(2)
        check(cache)
        spoil(cache, lease)
        with pytest.raises(InvariantError, match=message):
            check(cache)
