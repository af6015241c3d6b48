"""Variations of settings and what would pay: one setting changed at a time, and what each
brings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from radixlm.cache.policies.named import NAMES
from radixlm.sim.outcomes import Outcome, SimRun
from radixlm.sim.sim_disk import DiskSize

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
    for times in POOLS:
        size = int(times * pool)
        yield Variation(
            f"a pool of {size:,} tokens, {times:g} times as large",
            replace(run, config=replace(config, kv_tokens=size)),
        )
    for name in NAMES:
        if name != config.eviction_policy:
            yield Variation(
                f"--eviction-policy {name}",
                replace(run, config=replace(config, eviction_policy=name)),
            )
    for order in ORDERS:
        if order != config.schedule_policy:
            yield Variation(
                f"--schedule-policy {order}",
                replace(run, config=replace(config, schedule_policy=order)),  # type: ignore[arg-type]
            )
    if run.disk is None and not config.disable_radix_cache:
        size = DISK * pool
        yield Variation(
            f"a disk of {size:,} tokens (--disk-cache)",
            replace(run, disk=DiskSize(size, disk_rate)),
        )


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
    pairs = [
        (base.ttft_ms_p50, other.ttft_ms_p50),
        (base.ttft_ms_p99, other.ttft_ms_p99),
    ]
    shares = [1 - after / before for before, after in pairs if before and after is not None]
    return sum(shares) / len(shares) if shares else 0.0
