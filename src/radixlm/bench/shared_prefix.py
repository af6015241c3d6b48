"""N requests over one prefix: what sharing it is worth."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from radixlm.bench.reporting import Contrast, in_turns, print_table, say
from radixlm.build import Engine
from radixlm.core.errors import ConfigError
from radixlm.core.sampling import SamplingParams


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """The workload. Sizes in tokens; every request has `shared` + `own` of prompt."""

    requests: int = 64
    shared: int = 1_000
    own: int = 50
    out: int = 32
    seed: int = 0

    def prompts(self, vocab_size: int) -> list[list[int]]:
        """Random ids; the own parts differ in their first token, so nothing else is shared."""
        if self.requests > vocab_size:
            raise ConfigError(f"{self.requests} requests need as many token ids, not {vocab_size}")
        draw = np.random.default_rng(self.seed)
        shared = draw.integers(0, vocab_size, self.shared).tolist()
        firsts = draw.permutation(vocab_size)[: self.requests].tolist()
        rest = draw.integers(0, vocab_size, (self.requests, self.own - 1)).tolist()
        return [[*shared, first, *own] for first, own in zip(firsts, rest, strict=True)]

    @property
    def prompt_tokens(self) -> int:
        return self.requests * (self.shared + self.own)

    def best_cached(self, page_size: int) -> int:
        """Prompt tokens that need not be computed, at the best: the prefix, but once."""
        return (self.requests - 1) * (self.shared - self.shared % page_size)

    def kv_tokens(self, page_size: int) -> int:
        """A pool that holds everything, so that nothing is evicted or retracted."""
        return self.requests * (self.shared + self.own + self.out + page_size) + 1_024


MODES = ("on", "off")
# What loads the kernels and starts the threads that the workload itself will use.
_WARM_REQUESTS, _WARM_OUT = 8, 8
_COLUMNS = ("cache", "wall s", "of the rounds", "computed", "cached", "possible", "out tok/s")


@dataclass(frozen=True, slots=True)
class Measurement:
    """One mode. cached, computed: tokens; walls_s: first submission to last token, each round's.

    wall_s: the median of those.
    """

    workload: str
    mode: str
    dtype: str
    requests: int
    prompt_tokens: int
    cached_tokens: int
    expected_cached_tokens: int
    computed_tokens: int
    output_tokens: int
    hit_rate: float
    best_hit_rate: float
    wall_s: float
    walls_s: tuple[float, ...]
    output_tokens_per_s: float


def measure(
    workload: SharedPrefix,
    model: str,
    *,
    dtype: str,
    page_size: int,
    rounds: int,
    done: Callable[[], object] = lambda: None,
) -> list[Measurement]:
    """Run the workload with the cache on and off, in turns, a new engine each time.

    done: called after each run.
    """
    runs: dict[str, list[Measurement]] = {mode: [] for mode in MODES}
    for mode in in_turns(MODES, rounds):
        runs[mode].append(_run(workload, model, mode=mode, dtype=dtype, page_size=page_size))
        done()
    return [_together(rows) for rows in runs.values()]


def _together(rounds: list[Measurement]) -> Measurement:
    """The same run several times, as one: the times of all of them."""
    walls = tuple(wall for each in rounds for wall in each.walls_s)
    wall = median(walls)
    speed = round(rounds[0].output_tokens / wall, 2)
    return replace(rounds[0], wall_s=round(wall, 4), walls_s=walls, output_tokens_per_s=speed)


def _run(
    workload: SharedPrefix, model: str, *, mode: str, dtype: str, page_size: int
) -> Measurement:
    params = SamplingParams(max_tokens=workload.out, temperature=0, ignore_eos=True)
    with Engine(
        model,
        dtype=dtype,
        page_size=page_size,
        kv_tokens=workload.kv_tokens(page_size),
        disable_radix_cache=mode == "off",
    ) as engine:
        prompts = workload.prompts(engine.info.vocab_size)
        warm = replace(
            workload, requests=min(workload.requests, _WARM_REQUESTS), seed=workload.seed + 1
        )
        engine.generate(
            warm.prompts(engine.info.vocab_size),
            replace(params, max_tokens=min(workload.out, _WARM_OUT)),
        )
        engine.flush_cache()
        before = engine.stats()
        started = time.perf_counter()
        engine.generate(prompts, params)
        wall = time.perf_counter() - started
        after = engine.stats()
        name = engine.info.dtype
    output = after.output_tokens - before.output_tokens
    cached = after.cached_tokens - before.cached_tokens
    best = workload.best_cached(page_size)
    return Measurement(
        workload="shared-prefix",
        mode=mode,
        dtype=name,
        requests=workload.requests,
        prompt_tokens=after.prompt_tokens - before.prompt_tokens,
        cached_tokens=cached,
        expected_cached_tokens=best if mode == "on" else 0,
        computed_tokens=after.computed_tokens - before.computed_tokens,
        output_tokens=output,
        hit_rate=round(cached / workload.prompt_tokens, 6),
        best_hit_rate=round(best / workload.prompt_tokens, 6),
        wall_s=round(wall, 4),
        walls_s=(round(wall, 4),),
        output_tokens_per_s=round(output / wall, 2),
    )


def contrast(rows: Sequence[Measurement]) -> Contrast:
    """The wall times without the cache beside those with it."""
    walls = {row.mode: row.walls_s for row in rows}
    return Contrast(off=walls["off"], on=walls["on"])


def show_shared_prefix(title: str, rows: Sequence[Measurement]) -> None:
    """Print a table with one row per measurement, and what the difference is worth."""
    cells = [
        [
            row.mode,
            f"{row.wall_s:.3f}",
            f"{min(row.walls_s):.3f} to {max(row.walls_s):.3f}",
            f"{row.computed_tokens:,}",
            f"{row.cached_tokens:,}",
            f"{row.expected_cached_tokens:,}",
            f"{row.output_tokens_per_s:,.0f}",
        ]
        for row in rows
    ]
    print_table(title, _COLUMNS, [cells], left=0)
    say(contrast(rows).sentence())
