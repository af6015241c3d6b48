"""One log line every few seconds of work."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from radixlm.core.clock import Clock
from radixlm.engine.stats import EngineStats

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
