"""Hypothesis against RadixCache: several leases and pins, any order of calls, a small pool."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    precondition,
    rule,
)

from radixlm.cache import NAMES
from radixlm.core.errors import CacheError, InvalidKeyError, LeaseClosedError, PinError
from tests.checked_cache import CheckedCache, Reader

NAMESPACES = st.sampled_from([None, "adapter"])
PAGES = st.lists(st.integers(0, 1), min_size=1, max_size=6)
REST = st.integers(0, 15)


class CacheMachine(RuleBasedStateMachine):
    """Every rule is one call that CheckedCache compares with the model; see there."""

    leases = Bundle("leases")

    @initialize(
        page_size=st.sampled_from([1, 4, 16]),
        pages=st.integers(4, 16),
        enabled=st.sampled_from([True, True, True, False]),
        ghosts=st.sampled_from([0, 3, 10, 64]),
        policy=st.sampled_from(sorted(NAMES)),
    )
    def start(self, page_size: int, pages: int, enabled: bool, ghosts: int, policy: str) -> None:
        self.page_size = page_size
        self.checked = CheckedCache(
            pages * page_size, page_size, enabled=enabled, ghost_budget=ghosts * page_size
        )
        self.checked.set_policy(policy)

    def _key(self, pages: list[int], rest: int) -> np.ndarray:
        kinds = [kind for kind in pages for _ in range(self.page_size)]
        return np.array(kinds + [7] * (rest % self.page_size), dtype=np.int32)

    @rule(
        target=leases,
        pages=PAGES,
        rest=REST,
        namespace=NAMESPACES,
        limit=st.one_of(st.none(), st.integers(0, 100)),
        priority=st.sampled_from([0, 0, 1, 2]),
    )
    def acquire(
        self, pages: list[int], rest: int, namespace: str | None, limit: int | None, priority: int
    ) -> Reader:
        return self.checked.acquire(self._key(pages, rest), namespace, limit, priority)

    @rule(reader=leases, share=st.floats(0, 1))
    def extend(self, reader: Reader, share: float) -> None:
        left = reader.tokens.size - len(reader.row)
        if left:
            self.checked.extend(reader, max(1, round(left * share)))

    @rule(reader=leases, share=st.sampled_from([1.0, 1.0, 0.5]))
    def commit(self, reader: Reader, share: float) -> None:
        self.checked.commit(reader, int(len(reader.row) * share))

    @rule(reader=leases)
    def compute_all_and_commit(self, reader: Reader) -> None:
        left = reader.tokens.size - len(reader.row)
        if not left or self.checked.extend(reader, left):
            self.checked.commit(reader, reader.tokens.size)

    @rule(reader=consumes(leases))
    def release(self, reader: Reader) -> None:
        """In whatever state it is: nothing computed, computed, part or all of it committed."""
        self.checked.release(reader)
        with pytest.raises(LeaseClosedError):
            reader.lease.release()

    @rule(pages=PAGES, rest=REST, namespace=NAMESPACES)
    def serve(self, pages: list[int], rest: int, namespace: str | None) -> None:
        reader = self.checked.acquire(self._key(pages, rest), namespace)
        self.compute_all_and_commit(reader)
        self.checked.release(reader)

    @rule(pages=PAGES, rest=REST, namespace=NAMESPACES)
    def look(self, pages: list[int], rest: int, namespace: str | None) -> None:
        self.checked.look(self._key(pages, rest), namespace)

    @rule(
        pages=PAGES,
        rest=REST,
        namespace=NAMESPACES,
        ttl=st.one_of(st.none(), st.sampled_from([1.0, 5.0, 20.0])),
    )
    def pin(self, pages: list[int], rest: int, namespace: str | None, ttl: float | None) -> None:
        self.checked.pin(self._key(pages, rest), namespace, ttl)

    @precondition(lambda self: self.checked.pins)
    @rule(data=st.data())
    def unpin(self, data: st.DataObject) -> None:
        pin_id = data.draw(st.sampled_from(sorted(self.checked.pins)))
        self.checked.unpin(pin_id)
        with pytest.raises(PinError, match=f"no pin {pin_id}"):
            self.checked.cache.unpin(pin_id)

    @rule(seconds=st.sampled_from([0.5, 1.0, 10.0]))
    def wait(self, seconds: float) -> None:
        self.checked.clock.advance(seconds)

    @rule(policy=st.sampled_from(sorted(NAMES)))
    def set_policy(self, policy: str) -> None:
        self.checked.set_policy(policy)

    @rule(reader=leases)
    def misuse(self, reader: Reader) -> None:
        with pytest.raises(CacheError, match="at least one token"):
            reader.lease.extend(0)
        with pytest.raises(CacheError, match="have slots"):
            reader.lease.commit(len(reader.row) + 1)

    @rule(reader=leases)
    def negative_ids(self, reader: Reader) -> None:
        """They are found when they would enter the tree, which stays as it is."""
        done, size = len(reader.row), self.page_size
        if not self.checked.enabled or done - done % size <= reader.committed:
            return
        version = self.checked.cache.tree.version
        key, reader.lease.key = reader.lease.key, reader.lease.key.copy()
        reader.lease.key[reader.committed : done] = -9
        with pytest.raises(InvalidKeyError, match="got -9"):
            reader.lease.commit(done)
        reader.lease.key = key
        assert self.checked.cache.tree.version == version

    @rule()
    def flush(self) -> None:
        self.checked.flush()

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "checked"):
            self.checked.verify()

    def teardown(self) -> None:
        if hasattr(self, "checked"):
            self.checked.close()


TestCache = CacheMachine.TestCase
TestCache.settings = settings(
    max_examples=40,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
)


@pytest.mark.slow
class TestCacheAtLength(TestCache):  # type: ignore[misc,valid-type]
    settings = settings(TestCache.settings, max_examples=150)
