"""Outcomes of a trace with some settings: runs of many side by side, and of one setting changed at
a time, what each change brings.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from radixlm.bench.tables import percentile_ms
from radixlm.cache.policies.named import NAMES
from radixlm.core.config import EngineConfig
from radixlm.sim.calls import Problems
from radixlm.sim.costs import Costs
from radixlm.sim.replay import Replay, Times
from radixlm.sim.sim_disk import DiskSize
from radixlm.sim.sources import TraceSource

_SECONDS_TO_LOOK = 0.2


@dataclass(frozen=True, slots=True)
class SimRun:
    """One setting. config: of each replica, with kv_tokens; its model is not read."""

    source: TraceSource
    config: EngineConfig
    costs: Costs
    users: int
    disk: DiskSize | None = None
    replicas: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of one run. Sizes in tokens; where a token stands for a block, in the block's.

    left_out: lines and calls with which something was wrong. queued_ms: from arrival to the first
    step. duration_s: of the trace, by the virtual clock. wall_s: what the run itself took. bounds:
    hit rates beside which this one stands, by their names, see bounds; of replicas, as if their
    pools were one. imbalance: tokens that the replica with most of them computed, over the mean.
    stored_computed_tokens, unwritten_tokens, dropped_tokens: with a disk, see DiskLosses.
    no_state_tokens: see Replay. What has a default is not known of a server that runs, see live.
    """

    trace: str
    costs: str
    replicas: int = 1
    kv_tokens: int
    disk_tokens: int = 0
    page_size: int
    eviction_policy: str
    schedule_policy: str
    calls: int
    left_out: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    hit_rate: float
    ttft_ms_p50: float | None
    ttft_ms_p99: float | None
    tpot_ms_p50: float | None
    tpot_ms_p99: float | None
    queued_ms_p50: float | None
    queued_ms_p99: float | None
    output_tokens_per_s: float
    prompt_tokens_per_s: float
    duration_s: float
    evicted_tokens: int = 0
    restored_tokens: int = 0
    stored_computed_tokens: int = 0
    unwritten_tokens: int = 0
    dropped_tokens: int = 0
    no_state_tokens: int = 0
    retractions: int = 0
    steps: int = 0
    imbalance: float = 1.0
    wall_s: float
    bounds: Mapping[str, float] = field(default_factory=dict)


class Done(NamedTuple):
    """problems: of the trace, and the calls that this setting refuses."""

    outcome: Outcome
    problems: Problems


def measure(run: SimRun, done: Callable[[], object] = lambda: None) -> Done:
    """done: called after each call. Raises ConfigError."""
    problems = Problems()
    began = time.perf_counter()
    sessions = run.source.open(problems)
    scale = sessions.scale
    replay = Replay(
        *(run.config, run.costs, problems),
        users=run.users,
        scale=scale,
        disk=run.disk,
        replicas=run.replicas,
        done=done,
    )
    replay.run(sessions)
    wall_s = round(time.perf_counter() - began, 3)
    stats = [machine.core.stats() for machine in replay.machines]
    losses = [machine.disk.losses for machine in replay.machines if machine.disk is not None]
    prompts, cached, computed = (
        [getattr(each, name) for each in stats]
        for name in ("prompt_tokens", "cached_tokens", "computed_tokens")
    )
    states = run.config.max_mamba_cache_size or 0
    seconds, mean = replay.seconds, sum(computed) / len(computed)
    outcome = Outcome(
        trace=run.source.name,
        costs=run.costs.name,
        replicas=run.replicas,
        kv_tokens=run.config.kv_tokens or 0,
        disk_tokens=0 if run.disk is None else run.disk.tokens,
        page_size=run.config.page_size,
        eviction_policy=run.config.eviction_policy,
        schedule_policy=run.config.schedule_policy,
        calls=replay.calls,
        left_out=problems.count,
        prompt_tokens=scale * sum(prompts),
        cached_tokens=scale * sum(cached),
        output_tokens=replay.generated,
        hit_rate=round(sum(cached) / max(sum(prompts), 1), 6),
        **percentiles(replay.times),
        output_tokens_per_s=rate(replay.generated, seconds),
        prompt_tokens_per_s=rate(scale * sum(prompts), seconds),
        duration_s=round(seconds, 3),
        evicted_tokens=scale * sum(each.evicted_tokens for each in stats),
        restored_tokens=scale * sum(each.disk_restored for each in stats),
        stored_computed_tokens=scale * sum(each.stored_computed for each in losses),
        unwritten_tokens=scale * sum(each.unwritten for each in losses),
        dropped_tokens=scale * sum(each.dropped for each in losses),
        no_state_tokens=scale * replay.no_state_tokens,
        retractions=sum(each.retractions for each in stats),
        steps=sum(each.steps for each in stats),
        imbalance=round(max(computed) / mean, 3) if mean else 1.0,
        bounds=replay.history.bounds(replay.capacity, run.replicas * states),
        wall_s=wall_s,
    )
    return Done(outcome, problems)


def measure_all(runs: Sequence[SimRun], jobs: int, tick: Callable[[int], object]) -> Iterator[Done]:
    """Each run's outcome, in order. jobs: processes; 1 is this one. tick: called with how many more
    calls are done.
    """
    if jobs == 1 or len(runs) == 1:
        for run in runs:
            yield measure(run, lambda: tick(1))
        return
    # Not forked: threads of libraries would not be there in the children.
    context = multiprocessing.get_context("spawn")
    count = context.Value("q", 0)
    shown = 0
    with ProcessPoolExecutor(
        min(jobs, len(runs)), mp_context=context, initializer=_share, initargs=(count,)
    ) as pool:
        futures = [pool.submit(_measure_there, run) for run in runs]
        try:
            for future in futures:
                while not future.done():
                    wait([future], timeout=_SECONDS_TO_LOOK)
                    now = count.value
                    tick(now - shown)
                    shown = now
                yield future.result()
        except BaseException:  # Ctrl-C, too: the pool would wait for all runs
            for process in multiprocessing.active_children():
                process.kill()
            raise
        tick(count.value - shown)


_shared: list[Any] = []  # in a process of its own: the count of all


def _share(count: Any) -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # Ctrl-C ends it without an account of its stack
    _shared[:] = [count]


def _measure_there(run: SimRun) -> Done:
    def done() -> None:
        with _shared[0].get_lock():
            _shared[0].value += 1

    return measure(run, done)


def percentiles(times: Times) -> dict[str, Any]:
    """An outcome's, in milliseconds."""
    named = {"ttft_ms": times.first, "tpot_ms": times.between, "queued_ms": times.queued}
    return {
        f"{name}_p{percent}": percentile_ms(seconds, percent)
        for name, seconds in named.items()
        for percent in (50, 99)
    }


def rate(tokens: int, seconds: float) -> float:
    return round(tokens / seconds, 2) if seconds > 0 else 0.0


# What is tried: of the pool as many times, and a disk of as many pools.
POOLS = (0.5, 2.0, 4.0)
DISK = 8
ORDERS = ("lpm", "fcfs")
# Below it nothing is worth a change: a gain in points of the hit rate, or in time.
POINTS, FASTER = 1.0, 0.05


class Variation(NamedTuple):
    """One change of a run, in words."""

    text: str
    run: SimRun


def variations(run: SimRun, disk_rate: float) -> Iterator[Variation]:
    """Other pools, policies and orders, and a disk where there is none."""
    config, pool = run.config, run.config.kv_tokens or 0
    changes: list[tuple[str, dict[str, Any]]] = [
        (f"a pool of {size:,} tokens, {times:g} times as large", {"kv_tokens": size})
        for times, size in ((times, int(times * pool)) for times in POOLS)
    ]
    for setting, names in (("eviction_policy", NAMES), ("schedule_policy", ORDERS)):
        flag, own = f"--{setting.replace('_', '-')}", getattr(config, setting)
        changes += [(f"{flag} {name}", {setting: name}) for name in names if name != own]
    for text, change in changes:
        yield Variation(text, replace(run, config=replace(config, **change)))
    if run.disk is None and not config.disable_radix_cache:
        disk = DiskSize(DISK * pool, disk_rate)
        text = f"a disk of {disk.tokens:,} tokens (--disk-cache)"
        yield Variation(text, replace(run, disk=disk))


class Gain(NamedTuple):
    """The gain of a variation. points: of the hit rate, in percent. faster: how much less the time
    to the first token is, the mean of median and 99th percentile; 0.5 is half.
    """

    text: str
    points: float
    faster: float
    outcome: Outcome

    @property
    def pays(self) -> bool:
        better = self.points >= POINTS or self.faster >= FASTER
        return better and self.points > -POINTS and self.faster > -FASTER

    def sentence(self) -> str:
        ttft = self.outcome.ttft_ms_p50
        time = (
            "" if not ttft else f", first token after {ttft:,.0f} ms ({-100 * self.faster:+.0f} %)"
        )
        rate = 100 * self.outcome.hit_rate
        return f"{self.text}: hit rate {rate:.1f} % ({self.points:+.1f} points){time}"


def gains(base: Outcome, texts: Sequence[str], outcomes: Sequence[Outcome]) -> list[Gain]:
    """The gains of each variation, the best first."""
    found = [
        Gain(text, 100 * (each.hit_rate - base.hit_rate), _faster(base, each), each)
        for text, each in zip(texts, outcomes, strict=True)
    ]
    return sorted(found, key=lambda gain: (-gain.points, -gain.faster))


def _faster(base: Outcome, other: Outcome) -> float:
    pairs = ((base.ttft_ms_p50, other.ttft_ms_p50), (base.ttft_ms_p99, other.ttft_ms_p99))
    shares = [1 - after / before for before, after in pairs if before and after is not None]
    return sum(shares) / len(shares) if shares else 0.0
