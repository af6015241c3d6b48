"""The engine in numbers, as they were after the last step."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from radixlm.core.clock import Clock
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


_logger = logging.getLogger("radixlm.engine")


class StepLog:
    """Says what happened since its last line, at most once in `interval` seconds of work."""

    def __init__(self, clock: Clock, interval: float = 5.0) -> None:
        self._clock = clock
        self._interval = interval
        self._since = clock.now()
        self._before = EngineStats()

    @contextmanager
    def idle(self) -> Iterator[None]:
        """Time spent in here is no work: it counts neither for the interval nor in the rates."""
        began = self._clock.now()
        yield
        self._since += self._clock.now() - began

    def record(self, stats: EngineStats) -> None:
        now = self._clock.now()
        seconds = now - self._since
        if seconds < self._interval:
            return
        before, self._before, self._since = self._before, stats, now
        prompt = stats.prompt_tokens - before.prompt_tokens
        cached = stats.cached_tokens - before.cached_tokens
        output = stats.output_tokens - before.output_tokens
        steps = max(stats.steps - before.steps, 1)
        _logger.info(
            "running %d, waiting %d | new tokens %d (%.1f/s), computed %d, cached %d, "
            "hit rate %.1f %% (%.1f %% in all) | KV in use %d of %d (%.1f %%), kept %d, "
            "read %.1f MB a step (%.1f unshared)",
            stats.running,
            stats.waiting,
            output,
            output / seconds,
            stats.computed_tokens - before.computed_tokens,
            cached,
            100 * cached / prompt if prompt else 0.0,
            100 * stats.hit_rate,
            stats.kv_in_use,
            stats.kv_capacity,
            100 * stats.kv_in_use / max(stats.kv_capacity, 1),
            stats.kv_evictable,
            (stats.kv_bytes_read - before.kv_bytes_read) / steps / 1e6,
            (stats.kv_bytes_of_rows - before.kv_bytes_of_rows) / steps / 1e6,
        )
