"""Run programs of the frontend language beside the same requests sent without it, in turns."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator
from contextlib import aclosing
from dataclasses import dataclass
from statistics import median
from typing import NamedTuple

from radixlm.bench.bound import Finished, best_possible
from radixlm.bench.frontend_programs import AT_ONCE, Twins
from radixlm.bench.paper_run import MeasuringClient, Setup, warm_up
from radixlm.bench.programs import Ask, run_all
from radixlm.bench.reporting import in_turns
from radixlm.build import AsyncEngine
from radixlm.core.keys import Key
from radixlm.core.request import RequestOutput
from radixlm.core.sampling import SamplingParams

# KV pool over distinct tokens: nothing is evicted, and the engine has what it reserves.
_ROOM = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontendRow:
    """One workload. Rates are of the language's requests, in all rounds.

    best_hit_rate: what no order can beat. wall_s, direct_wall_s: medians with and without the
    language, from the first program's start to the last one's end. overhead: median, over the
    rounds, of how much longer it takes with the language, as a share.
    """

    workload: str
    programs: int
    requests: int
    direct_requests: int
    prompt_tokens: int
    direct_prompt_tokens: int
    cached_tokens: int
    hit_rate: float
    best_hit_rate: float
    direct_hit_rate: float
    wall_s: float
    direct_wall_s: float
    overhead: float
    rounds: int
    pool_tokens: int
    seed: int
    shape: str
    dtype: str


class Listener:
    """An AsyncEngine, and what came of each of its requests. done: called after each."""

    def __init__(self, engine: AsyncEngine, done: Callable[[], object]) -> None:
        self.info = engine.info
        self.tokenizer = engine.tokenizer
        self.chat_template = engine.chat_template
        self.flush_cache = engine.flush_cache
        self._heard: list[tuple[Key, RequestOutput]] = []
        self._engine = engine
        self._done = done

    async def stream(
        self, prompt: Key, params: SamplingParams
    ) -> AsyncGenerator[RequestOutput, None]:
        outputs = []
        async with aclosing(self._engine.stream(prompt, params)) as stream:
            async for output in stream:
                outputs.append(output)
                yield output
        self._heard.append((prompt, RequestOutput.joined(outputs)))
        self._done()

    @property
    def cached_tokens(self) -> int:
        """Of all prompts."""
        return sum(output.cached_tokens for _, output in self._heard)

    @property
    def finished(self) -> list[Finished]:
        """The requests in the order in which they ended."""
        return [
            Finished(Ask(prompt=key.tolist(), out=len(output.token_ids)), list(output.token_ids))
            for key, output in self._heard
        ]


class _Round(NamedTuple):
    """One round, one way. prompt, best, cached: tokens; wall: seconds."""

    requests: int
    prompt: int
    best: int
    cached: int
    wall: float


Way = Callable[[Twins, Setup, Listener], Callable[[], object]]


def run(
    twins: Iterable[Twins],
    setup: Setup,
    rounds: int,
    *,
    started: Callable[[str], object] = lambda _workload: None,
    done: Callable[[], object] = lambda: None,
) -> Iterator[FrontendRow]:
    """Measure each workload; a row comes as soon as it is known.

    started: called with the name of the workload. done: called after each request.
    """
    for each in twins:
        started(each.workload.name)
        yield _measure(each, setup, rounds, done)


def _measure(twins: Twins, setup: Setup, rounds: int, done: Callable[[], object]) -> FrontendRow:
    engine = setup.engine(setup.plan(twins.workload).pool_tokens(setup.pool or _ROOM))
    ways: tuple[Way, Way] = (_direct, _through_the_language)
    measured: dict[Way, list[_Round]] = {way: [] for way in ways}
    try:
        asyncio.run(warm_up(engine))
        for way in in_turns(ways, rounds):
            asyncio.run(engine.flush_cache())
            gc.collect()
            listener = Listener(engine, done)
            work = way(twins, setup, listener)
            started = time.perf_counter()
            work()
            wall = time.perf_counter() - started
            finished = listener.finished
            bound, cached = best_possible(finished), listener.cached_tokens
            each = _Round(len(finished), bound.prompt, bound.cached, cached, wall)
            measured[way].append(each)
    finally:
        asyncio.run(engine.close())
    direct, through = measured.values()
    return _row(twins, setup, direct, through, engine.info.kv_tokens)


def _direct(twins: Twins, setup: Setup, listener: Listener) -> Callable[[], object]:
    programs = twins.direct(seed=setup.seed, scale=setup.scale)
    return lambda: asyncio.run(run_all(MeasuringClient(listener), programs))


def _through_the_language(twins: Twins, setup: Setup, listener: Listener) -> Callable[[], object]:
    calls = twins.calls(seed=setup.seed, scale=setup.scale)
    return lambda: twins.function.run_batch(
        calls, backend=listener, num_threads=AT_ONCE, temperature=0.0, ignore_eos=True
    )


def _row(
    twins: Twins, setup: Setup, direct: list[_Round], through: list[_Round], pool_tokens: int
) -> FrontendRow:
    ratios = [ours.wall / theirs.wall for ours, theirs in zip(through, direct, strict=True)]
    requests, prompt, best, cached, _ = map(sum, zip(*through, strict=True))
    direct_requests, direct_prompt, _, direct_cached, _ = (
        sum(o) for o in zip(*direct, strict=True)
    )
    return FrontendRow(
        workload=twins.workload.name,
        programs=len(twins.calls(seed=setup.seed, scale=setup.scale)),
        requests=requests,
        direct_requests=direct_requests,
        prompt_tokens=prompt,
        direct_prompt_tokens=direct_prompt,
        cached_tokens=cached,
        hit_rate=round(cached / prompt, 6),
        best_hit_rate=round(best / prompt, 6),
        direct_hit_rate=round(direct_cached / direct_prompt, 6),
        wall_s=round(median(one.wall for one in through), 4),
        direct_wall_s=round(median(one.wall for one in direct), 4),
        overhead=round(median(ratios) - 1, 4),
        rounds=len(through),
        pool_tokens=pool_tokens,
        seed=setup.seed,
        shape=setup.shape,
        dtype=setup.dtype,
    )
