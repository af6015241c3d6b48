"""Run workloads in several modes, one engine each, and measure them at the client."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple

from radixlm.assembly import AsyncEngine, load
from radixlm.bench.programs import (
    BenchRequest,
    CompletedRequest,
    Reply,
    WorkloadPlan,
    best_possible,
    in_turns,
    run_all,
    together,
)
from radixlm.bench.tables import percentile_ms
from radixlm.bench.workloads import Workload
from radixlm.core.config import EngineConfig
from radixlm.core.keys import Key, as_key
from radixlm.core.request import RequestOutput
from radixlm.core.sampling import SamplingParams

Modes = Mapping[str, Mapping[str, Any]]
# What differs from the engine's defaults. `off` keeps the order, so that only the cache differs.
MODES: Modes = MappingProxyType(
    {
        "off": {"disable_radix_cache": True, "schedule_policy": "lpm"},
        "fcfs": {"schedule_policy": "fcfs"},
        "lpm": {"schedule_policy": "lpm"},
        # What a cache of hashed blocks could share.
        "page16": {"schedule_policy": "lpm", "page_size": 16},
    }
)
# Prompts that share, and differ in their last token, so that every kind of kernel is loaded.
_WARM_UP = [
    BenchRequest(prompt=[*(token % 250 for token in range(256)), last], out=8) for last in range(8)
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The engines that are measured, and how much.

    model: folder of the checkpoint; shape: its name. dtype: of weights and KV.
    scale: times as many requests. pool: KV pool over distinct tokens; None: all fits.
    modes: the engine's flags in each.
    """

    model: str
    shape: str
    vocab_size: int
    dtype: str = "float32"
    scale: float = 1.0
    seed: int = 0
    pool: float | None = None
    modes: Modes = field(default_factory=lambda: MODES)

    def plan(self, workload: Workload) -> WorkloadPlan:
        return workload.plan(self.vocab_size, seed=self.seed, scale=self.scale)

    def engine(self, kv_tokens: int, **flags: Any) -> AsyncEngine:
        """An engine without drafts, which are no matter of the cache."""
        its = {"speculative_algorithm": "off", **flags}
        config = EngineConfig.from_flags(
            model=self.model, dtype=self.dtype, kv_tokens=kv_tokens, **its
        )
        return AsyncEngine(load(config, progress=False))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadResult:
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


class MeasuredRequest(NamedTuple):
    """One request as its client saw it. Times in seconds.

    first: from submission to the first token. gaps: between one token and the next.
    """

    finished: CompletedRequest
    cached_tokens: int
    first: float
    gaps: list[float]


class Listener:
    """An AsyncEngine for programs of both kinds, and what came of each of its requests, in the
    order in which they ended.

    counted: whether the requests from now on are part of the measurement.
    done: called after each request.
    """

    def __init__(self, engine: AsyncEngine, done: Callable[[], object] = lambda: None) -> None:
        self.info, self.limits = engine.info, engine.limits
        self.tokenizer = engine.tokenizer
        self.chat_template = engine.chat_template
        self.flush_cache = engine.flush_cache
        self.counted = True
        self.measured: list[MeasuredRequest] = []
        self._engine = engine
        self._done = done

    async def stream(
        self, prompt: Key, params: SamplingParams
    ) -> AsyncGenerator[RequestOutput, None]:
        counted, started = self.counted, time.perf_counter()
        outputs: list[RequestOutput] = []
        moments: list[float] = []
        async with aclosing(self._engine.stream(prompt, params)) as stream:
            async for output in stream:
                outputs.append(output)
                moments.append(time.perf_counter())
                yield output
        whole = RequestOutput.joined(outputs)
        scored = 0 if params.prompt_logprobs is None else prompt.size - params.logprob_start_len
        ask = BenchRequest(prompt=prompt.tolist(), out=len(whole.token_ids), scored=scored)
        finished = CompletedRequest(ask, list(whole.token_ids), counted)
        gaps = _gaps(moments, [len(output.token_ids) for output in outputs])
        self.measured.append(
            MeasuredRequest(finished, whole.cached_tokens, moments[0] - started, gaps)
        )
        self._done()

    async def ask(self, ask: BenchRequest) -> Reply:
        outputs = self.stream(as_key(ask.prompt), _params(ask))
        whole = RequestOutput.joined([output async for output in outputs])
        return Reply(list(whole.token_ids), sum(entry.logprob for entry in whole.prompt_logprobs))


def _params(ask: BenchRequest) -> SamplingParams:
    return SamplingParams(
        max_tokens=ask.out,
        temperature=0.0 if ask.seed is None else 1.0,
        seed=ask.seed,
        ignore_eos=True,
        prompt_logprobs=0 if ask.scored else None,
        logprob_start_len=len(ask.prompt) - ask.scored if ask.scored else 0,
    )


def _gaps(moments: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Seconds between tokens. Those that arrived together share the time since the ones before;
    those that came with the first one took none.
    """
    gaps = [0.0] * (counts[0] - 1)
    for before, now, count in zip(moments, moments[1:], counts[1:], strict=False):
        gaps += [(now - before) / count] * count
    return gaps


def run(
    workloads: Iterable[tuple[Workload, WorkloadPlan]],
    modes: Sequence[str],
    setup: Setup,
    *,
    rounds: int = 1,
    started: Callable[[str], object] = lambda _name: None,
    done: Callable[[], object] = lambda: None,
) -> Iterator[WorkloadResult]:
    """Measure each workload in each mode, in turns; a workload's rows come as soon as it is done.

    started: called with the names of workload and mode. done: called after each request.
    """
    for workload, plan in workloads:
        measured: dict[str, list[WorkloadResult]] = {mode: [] for mode in modes}
        for mode in in_turns(modes, rounds):
            started(f"{workload.name}, {mode}")
            measured[mode].append(asyncio.run(_measure(workload, plan, mode, setup, done)))
        for rows in measured.values():
            middle = sorted(rows, key=lambda row: row.wall_s)[(rounds - 1) // 2]
            yield replace(middle, walls_s=tuple(row.wall_s for row in rows))


async def _measure(
    workload: Workload, plan: WorkloadPlan, mode: str, setup: Setup, done: Callable[[], object]
) -> WorkloadResult:
    share = setup.pool if workload.pool_share is None else workload.pool_share
    engine = setup.engine(plan.pool_tokens(share), **setup.modes[mode])
    try:
        await warm_up(engine)
        programs = workload.programs(setup.vocab_size, seed=setup.seed, scale=setup.scale)
        client = Listener(engine, done)
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
    bound = best_possible(item.finished for item in client.measured)
    counted = [item for item in client.measured if item.finished.counted]
    cached = sum(item.cached_tokens for item in counted)
    output = sum(len(item.finished.token_ids) for item in counted)
    first = [item.first for item in counted]
    gaps = [gap for item in counted for gap in item.gaps]
    return WorkloadResult(
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
        pool_tokens=engine.info.kv_tokens,
        seed=setup.seed,
        shape=setup.shape,
        dtype=setup.dtype,
    )


async def warm_up(engine: AsyncEngine) -> None:
    """Thread pools and kernels start with the first steps; they are not what is measured."""
    await together(Listener(engine), _WARM_UP)
    await engine.flush_cache()
