"""Run workloads in several modes, one engine each, and measure them at the client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from radixlm.bench.paper.bound import best_possible
from radixlm.bench.paper.client import MeasuringClient, percentile_ms
from radixlm.bench.paper.plan import Plan, make_plan
from radixlm.bench.paper.programs import Ask, run_all, together
from radixlm.bench.paper.workloads import Workload
from radixlm.build import AsyncEngine, load
from radixlm.core.config import EngineConfig

# What differs from the engine's defaults. `off` keeps the order, so that only the cache differs.
MODES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "off": {"disable_radix_cache": True, "schedule_policy": "lpm"},
        "fcfs": {"schedule_policy": "fcfs"},
        "lpm": {"schedule_policy": "lpm"},
        # What a cache of hashed blocks could share.
        "page16": {"schedule_policy": "lpm", "page_size": 16},
    }
)
# Prompts that share, and differ in their last token, so that every kind of kernel is loaded.
_WARM_UP = [Ask(prompt=[*(token % 250 for token in range(256)), last], out=8) for last in range(8)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """With what, and how much of it.

    model: folder of the checkpoint; shape: its name. dtype: of weights and KV.
    scale: times as many requests. pool: KV pool over distinct tokens; None: all fits.
    """

    model: str
    shape: str
    vocab_size: int
    dtype: str = "float32"
    scale: float = 1.0
    seed: int = 0
    pool: float | None = None

    def plan(self, workload: Workload) -> Plan:
        return make_plan(workload, self.vocab_size, seed=self.seed, scale=self.scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One workload in one mode.

    prompt_tokens, cached_tokens: of each request when it was first admitted.
    computed_tokens: in all steps: prompts, answers, and what was computed again.
    best_hit_rate: what no order can beat. wall_s: first submission to last token. walls_s: that of
    every round; all else is of the round in the middle.
    ttft_ms: submission to first token. itl_ms: between tokens; None where all answers have one.
    """

    workload: str
    mode: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    computed_tokens: int
    hit_rate: float
    best_hit_rate: float
    wall_s: float
    walls_s: tuple[float, ...]
    output_tokens_per_s: float
    ttft_ms_p50: float | None
    ttft_ms_p99: float | None
    itl_ms_p50: float | None
    itl_ms_p99: float | None
    pool_tokens: int
    seed: int
    shape: str
    dtype: str


def run(
    workloads: Iterable[tuple[Workload, Plan]],
    modes: Iterable[str],
    setup: Setup,
    *,
    rounds: int = 1,
    started: Callable[[str, str], object] = lambda _workload, _mode: None,
    done: Callable[[], object] = lambda: None,
) -> Iterator[Row]:
    """Measure each workload in each mode, in turns; a workload's rows come as soon as it is done.

    Which mode goes first changes from round to round. started: called with the names of workload
    and mode. done: called after each request.
    """
    for workload, plan in workloads:
        measured: dict[str, list[Row]] = {mode: [] for mode in modes}
        for number in range(rounds):
            for mode in list(measured)[:: -1 if number % 2 else 1]:
                started(workload.name, mode)
                measured[mode].append(asyncio.run(_measure(workload, plan, mode, setup, done)))
        yield from map(_together, measured.values())


def _together(rounds: Sequence[Row]) -> Row:
    """The round in the middle, with the times of all."""
    middle = sorted(rounds, key=lambda row: row.wall_s)[(len(rounds) - 1) // 2]
    return replace(middle, walls_s=tuple(row.wall_s for row in rounds))


async def _measure(
    workload: Workload, plan: Plan, mode: str, setup: Setup, done: Callable[[], object]
) -> Row:
    share = setup.pool if workload.pool_share is None else workload.pool_share
    config = EngineConfig.from_flags(
        model=setup.model, dtype=setup.dtype, kv_tokens=plan.pool_tokens(share), **MODES[mode]
    )
    engine = AsyncEngine(load(config, progress=False))
    try:
        await warm_up(engine)
        programs = workload.programs(setup.vocab_size, seed=setup.seed, scale=setup.scale)
        client = MeasuringClient(engine, done)
        client.counted = False
        for program in programs[: workload.unmeasured]:
            await program(client)
        client.counted = True
        before = engine.stats().computed_tokens
        started = time.perf_counter()
        await run_all(client, programs[workload.unmeasured :])
        wall = time.perf_counter() - started
        computed = engine.stats().computed_tokens - before
    finally:
        await engine.close()
    return _row(workload, mode, setup, client, wall, computed, engine.info.kv_tokens)


async def warm_up(engine: AsyncEngine) -> None:
    """Thread pools and kernels start with the first steps; they are not what is measured."""
    await together(MeasuringClient(engine, lambda: None), _WARM_UP)
    await engine.flush_cache()


def _row(
    workload: Workload,
    mode: str,
    setup: Setup,
    client: MeasuringClient,
    wall: float,
    computed: int,
    pool_tokens: int,
) -> Row:
    bound = best_possible(item.finished for item in client.measured)
    counted = [item for item in client.measured if item.finished.counted]
    cached = sum(item.cached_tokens for item in counted)
    output = sum(len(item.finished.token_ids) for item in counted)
    first = [item.first for item in counted]
    gaps = [gap for item in counted for gap in item.gaps]
    return Row(
        workload=workload.name,
        mode=mode,
        requests=len(counted),
        prompt_tokens=bound.prompt,
        cached_tokens=cached,
        computed_tokens=computed,
        hit_rate=round(cached / bound.prompt, 6),
        best_hit_rate=round(bound.hit_rate, 6),
        wall_s=round(wall, 4),
        walls_s=(round(wall, 4),),
        output_tokens_per_s=round(output / wall, 2),
        ttft_ms_p50=percentile_ms(first, 50),
        ttft_ms_p99=percentile_ms(first, 99),
        itl_ms_p50=percentile_ms(gaps, 50),
        itl_ms_p99=percentile_ms(gaps, 99),
        pool_tokens=pool_tokens,
        seed=setup.seed,
        shape=setup.shape,
        dtype=setup.dtype,
    )
