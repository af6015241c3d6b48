"""The engine in numbers, as they were after the last step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from radixlm.core.misses import POOL_SCALES, MissReason
from radixlm.core.reports import Tally

_NONE = Tally((), 0)


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot; sizes in tokens (slots), the rest are totals since the start.

    kv_free + kv_private + kv_locked + kv_evictable == kv_capacity; kv_pinned is part of kv_locked.
    ghost_tokens: evicted, but remembered. tree_nodes: of the radix tree, ghosts too; tree_leaves:
    those of them without children. revived_tokens: computed again while they were ghosts.
    reuse_age, match_depth, hits_at_eviction, endings: see TreeStats.
    hit_rate: cached_tokens / prompt_tokens over admitted requests, re-admissions counted apart.
    kv_bytes_read: what attention read; kv_bytes_of_rows: had each row read its own context.
    expected_tokens: what cached_tokens would be with pools of POOL_SCALES times the size.
    leaks: how often the books did not balance when the engine was idle; 0 unless there is a bug.
    picture_failures: pictures of the cache that could not be made; 0 unless there is a bug.
    """

    running: int = 0
    waiting: int = 0
    kv_capacity: int = 0
    kv_free: int = 0
    kv_private: int = 0
    kv_locked: int = 0
    kv_evictable: int = 0
    kv_pinned: int = 0
    ghost_tokens: int = 0
    tree_nodes: int = 0
    tree_leaves: int = 0
    revived_tokens: int = 0
    evicted_tokens: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    readmitted_tokens: int = 0
    readmitted_cached: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    requests_finished: int = 0
    requests_aborted: int = 0
    retractions: int = 0
    preemptions: int = 0
    steps: int = 0
    kv_bytes_read: int = 0
    kv_bytes_of_rows: int = 0
    leaks: int = 0
    picture_failures: int = 0
    hit_rate: float = 0.0
    reuse_age: Tally = _NONE
    match_depth: Tally = _NONE
    hits_at_eviction: Tally = _NONE
    endings: Mapping[MissReason, int] = field(default_factory=dict)
    expected_tokens: tuple[int, ...] = (0,) * len(POOL_SCALES)

    @property
    def kv_in_use(self) -> int:
        """Slots that running requests hold."""
        return self.kv_private + self.kv_locked

    @property
    def token_usage(self) -> float:
        """Share of the slots that running requests hold."""
        return self.kv_in_use / max(self.kv_capacity, 1)
