"""Hypothesis against RadixCache: several leases, any order of calls, a small pool."""

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
    rule,
)

from benchmarks.cache_stress import CheckedCache, Reader
from radixlm.core.errors import CacheError, LeaseClosedError

NAMESPACES = st.sampled_from([None, "adapter"])
PAGES = st.lists(st.integers(0, 1), min_size=1, max_size=6)


class CacheMachine(RuleBasedStateMachine):
    """Every rule is one call that CheckedCache compares with the model; see there."""

    leases = Bundle("leases")

    @initialize(
        page_size=st.sampled_from([1, 4, 16]),
        pages=st.integers(4, 16),
        enabled=st.sampled_from([True, True, True, False]),
    )
    def start(self, page_size: int, pages: int, enabled: bool) -> None:
        self.page_size = page_size
        self.checked = CheckedCache(pages * page_size, page_size, enabled=enabled)

    def _key(self, pages: list[int], rest: int) -> np.ndarray:
        kinds = [kind for kind in pages for _ in range(self.page_size)]
        return np.array(kinds + [7] * (rest % self.page_size), dtype=np.int32)

    @rule(
        target=leases,
        pages=PAGES,
        rest=st.integers(0, 15),
        namespace=NAMESPACES,
        limit=st.one_of(st.none(), st.integers(0, 100)),
    )
    def acquire(
        self, pages: list[int], rest: int, namespace: str | None, limit: int | None
    ) -> Reader:
        return self.checked.acquire(self._key(pages, rest), namespace, limit)

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
        self.checked.release(reader)
        with pytest.raises(LeaseClosedError):
            reader.lease.release()

    @rule(pages=PAGES, rest=st.integers(0, 15), namespace=NAMESPACES)
    def look(self, pages: list[int], rest: int, namespace: str | None) -> None:
        self.checked.look(self._key(pages, rest), namespace)

    @rule(reader=leases)
    def misuse(self, reader: Reader) -> None:
        with pytest.raises(CacheError, match="at least one token"):
            reader.lease.extend(0)
        with pytest.raises(CacheError, match="have slots"):
            reader.lease.commit(len(reader.row) + 1)

    @rule()
    def flush(self) -> None:
        self.checked.flush()

    @invariant()
    def agrees(self) -> None:
        if hasattr(self, "checked"):
            self.checked.verify()

    def teardown(self) -> None:
        if not hasattr(self, "checked"):
            return
        while self.checked.readers:
            self.checked.release(self.checked.readers[0])
        self.checked.flush()
        self.checked.verify()
        assert self.checked.cache.node_count == 0
        assert self.checked.cache.usage().free == self.checked.capacity


TestCache = CacheMachine.TestCase
TestCache.settings = settings(
    max_examples=150,
    stateful_step_count=50,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    derandomize=True,
    database=None,
)
