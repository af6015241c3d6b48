"""The engine in numbers, after the last step, and its line in the log."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import Field, dataclass, field, fields
from operator import add
from typing import Any

from radixlm.core.clock import Clock
from radixlm.core.misses import MissReason
from radixlm.core.reports import Tally, counter, gauge, histogram
from radixlm.scheduler import Counters

_logger = logging.getLogger("radixlm.engine")


@dataclass(slots=True)
class EngineStats(Counters):
    """A snapshot, not changed once made; sizes in tokens (slots), else totals since the start.

    kv_free + kv_private + kv_locked + kv_evictable == kv_capacity; kv_pinned is part of kv_locked.
    swa_*: the same of layers with a sliding window, where these have slots of their own; else 0.
    mamba_*: the same of states, in slots of all layers together.
    """

    hit_rate: float = gauge("cache_hit_rate", "Cached prompt tokens / prompt tokens.")
    running: int = gauge("num_running_reqs", "Requests that run.")
    waiting: int = gauge("num_queue_reqs", "Requests that wait.")
    kv_capacity: int = gauge("max_total_num_tokens", "KV slots in all.")
    kv_free: int = gauge("num_free_tokens", "KV slots that hold nothing.")
    kv_private: int = 0
    kv_locked: int = 0
    kv_evictable: int = gauge("num_evictable_tokens", "KV slots of cached tokens that none uses.")
    kv_pinned: int = 0
    swa_capacity: int = gauge(
        "swa_max_total_num_tokens", "Window slots in all; 0: all layers have the same slots."
    )
    swa_free: int = gauge("num_free_swa_tokens", "Window slots that hold nothing.")
    swa_private: int = 0
    swa_locked: int = 0
    swa_evictable: int = gauge(
        "num_evictable_swa_tokens", "Window slots of cached tokens that none uses."
    )
    swa_evicted_tokens: int = counter(
        "evicted_swa_tokens", "Cached tokens whose window slots had to go, or were out of sight."
    )
    mamba_capacity: int = gauge(
        "max_mamba_cache_size", "State slots in all; 0: the model has no states."
    )
    mamba_free: int = gauge("num_free_mamba_slots", "State slots that hold nothing.")
    mamba_private: int = 0
    mamba_locked: int = 0
    mamba_evictable: int = gauge(
        "num_evictable_mamba_slots", "Checkpoints of states that none uses."
    )
    mamba_checkpoints: int = counter("mamba_checkpoints", "Checkpoints of states that were left.")
    mamba_evicted: int = counter("evicted_mamba_checkpoints", "Of these, those that had to go.")
    ghost_tokens: int = gauge("num_ghost_tokens", "Evicted tokens that are remembered.")
    tree_nodes: int = gauge("num_tree_nodes", "Nodes of the radix tree, ghosts too.")
    tree_leaves: int = gauge("num_tree_leaves", "Of these, without children.")
    revived_tokens: int = counter(
        "ghost_hit_tokens", "Evicted tokens that were computed again while remembered."
    )
    evicted_tokens: int = counter("evicted_tokens", "Cached tokens that had to go.")
    host_capacity: int = gauge(
        "hicache_host_total_tokens", "Tokens that --host-kv-tokens has room for; 0 without."
    )
    host_tokens: int = gauge("hicache_host_used_tokens", "Tokens that are in host memory.")
    host_state_tokens: int = gauge(
        "hicache_host_state_tokens", "Of these, the room of checkpoints of states."
    )
    host_read: int = counter("load_back_tokens", "Tokens that were copied back from host memory.")
    host_restored: int = counter("host_restored_tokens", "Of these, those that entered the cache.")
    host_written: int = counter("hicache_backup_tokens", "Tokens that were copied to host memory.")
    host_failed_reads: int = counter("num_failed_host_reads", "Copies back that ended early.")
    host_failed_writes: int = counter("num_failed_host_writes", "Copies that ended early.")
    host_slow_reads: int = counter(
        "num_slow_host_reads", "Times copying back was given up, as it was slower than computing."
    )
    host_hung: int = counter(
        "num_hung_host_transfers", "Copies that were given up: nothing came of them in 10 s."
    )
    host_writing_off: int = gauge(
        "host_writing_off", "1 once a copy has failed: nothing is copied to host memory any more."
    )
    disk_capacity: int = gauge(
        "max_total_num_disk_tokens", "Tokens that --disk-cache has room for; 0 without one."
    )
    disk_tokens: int = gauge("num_disk_tokens", "Tokens that are on disk.")
    disk_state_tokens: int = gauge(
        "num_disk_state_tokens", "Of these, the room of checkpoints of states."
    )
    disk_read: int = counter("prefetched_tokens", "Tokens that were read from disk.")
    disk_restored: int = counter(
        "restored_tokens", "Of these, those that entered the cache: nobody had computed them first."
    )
    disk_written: int = counter("backuped_tokens", "Tokens that were written to disk.")
    disk_failed_reads: int = counter(
        "num_failed_disk_reads",
        "Reads that found blocks missing or damaged, or a disk that failed.",
    )
    disk_failed_writes: int = counter(
        "num_failed_disk_writes", "Writes that ended early: no room, or a disk that failed."
    )
    disk_slow_reads: int = counter(
        "num_slow_disk_reads", "Times reading was given up, since it was slower than computing."
    )
    disk_hung: int = counter(
        "num_hung_disk_transfers", "Reads and writes given up: nothing came of them in 10 s."
    )
    disk_damaged: int = counter(
        "num_damaged_disk_blocks", "Blocks that were read and found damaged; none is read again."
    )
    disk_writing_off: int = gauge(
        "disk_writing_off", "1 once the disk has failed: nothing is written to it any more."
    )
    steps: int = counter("num_steps", "Forward passes.")
    kv_bytes_read: int = counter("kv_read_bytes", "Keys and values that attention read.")
    kv_bytes_of_rows: int = counter(
        "kv_context_bytes", "The same, had each request read its own context."
    )
    leaks: int = counter("num_leaks", "Times slots were missing when idle: a bug if not 0.")
    picture_failures: int = counter(
        "num_picture_failures", "Views of the cache that broke off: a bug if not 0."
    )
    reuse_age: Tally = histogram(
        "reuse_age", "Uses of the tree since what was found was last used."
    )
    match_depth: Tally = histogram("match_depth", "Nodes that what was found runs through.")
    hits_at_eviction: Tally = histogram(
        "hits_at_eviction", "How often a node had been found when tokens of it were evicted."
    )
    endings: Mapping[MissReason, int] = field(default_factory=dict)

    @classmethod
    def summed(cls, parts: Iterable[EngineStats]) -> EngineStats:
        """The sum of several engines' figures."""
        total = cls()
        for part in parts:
            for item in fields(cls):
                here, there = getattr(total, item.name), getattr(part, item.name)
                setattr(total, item.name, _sum(here, there))
        total.hit_rate = total.cached_tokens / max(total.prompt_tokens, 1)
        return total

    def totals(self) -> EngineStats:
        """The same without sizes."""
        counted = {item.name for item in fields(Counters)} | {"endings"}
        counted |= {item.name for item in fields(self) if _is_counted(item)}
        return EngineStats(**{name: getattr(self, name) for name in counted})

    @property
    def kv_in_use(self) -> int:
        """Slots that running requests hold."""
        return self.kv_private + self.kv_locked

    @property
    def token_usage(self) -> float:
        """Share of the slots that running requests hold."""
        return self.kv_in_use / max(self.kv_capacity, 1)

    @property
    def swa_token_usage(self) -> float:
        """Share of the window slots that running requests hold."""
        return (self.swa_private + self.swa_locked) / max(self.swa_capacity, 1)


def _is_counted(item: Field[Any]) -> bool:
    metric = item.metadata.get("metric")
    return metric is not None and metric.kind != "gauge"


def _sum(here: Any, there: Any) -> Any:
    match here:
        case Tally():
            return here.plus(there)
        case tuple():
            return tuple(map(add, here, there))
        case Mapping() if any(
            isinstance(each, tuple) for each in (*here.values(), *there.values())
        ):
            names = {**here, **there}
            return {n: tuple(map(add, here.get(n, (0, 0)), there.get(n, (0, 0)))) for n in names}
        case Mapping():
            return dict(Counter(here) + Counter(there))  # of a Counter asdict makes nonsense
    return here + there


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
        try:
            yield
        finally:
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
            100 * stats.token_usage,
            stats.kv_evictable,
            (stats.kv_bytes_read - before.kv_bytes_read) / steps / 1e6,
            (stats.kv_bytes_of_rows - before.kv_bytes_of_rows) / steps / 1e6,
        )
