"""The times of a model's steps on this machine, measured through a whole engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from statistics import median

import numpy as np

from radixlm.assembly import AsyncEngine, Engine
from radixlm.bench.tables import processor
from radixlm.core.config import EngineConfig
from radixlm.core.flags import flags_of
from radixlm.core.keys import Key
from radixlm.core.sampling import SamplingParams
from radixlm.sim.costs import Costs, Timed

# New tokens of a prompt, and what comes before them; rows that decode, and the context of each.
SIZES = (1, 8, 32, 128, 512, 1_024, 2_048)
BEFORE = (0, 1_024, 4_096)
ROWS = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (16, 1_024, 4_096)
# Of contexts of all rows together, each computed once before it is measured.
_MOST_CONTEXT = 16_384
_STEPS = 20
# Repeats of what is measured, of more tokens than these a few; and of all of it, where the faster
# time counts: other work on the machine lasts for a while.
_SMALL, _MANY, _FEW = 256, 7, 3
_PASSES = 2
_SEED = 0


class Calibration:
    """Measures an engine of which nobody else makes use. done: called after each figure.

    Contexts are computed first, and then come from the cache, so that a step computes what is
    measured and nothing else.
    """

    def __init__(
        self, engine: Engine | AsyncEngine, done: Callable[[], object] = lambda: None
    ) -> None:
        self._engine = engine
        self._done = done
        self._random = np.random.default_rng(_SEED)
        self._most = engine.limits.longest - _STEPS - 1
        self._chunk = engine.config.chunked_prefill_size

    @property
    def prefills(self) -> list[tuple[int, int]]:
        sizes = [size for size in SIZES if size <= self._chunk]
        return [(n, c) for n in sizes for c in BEFORE if n + c < self._most]

    @property
    def decodes(self) -> list[tuple[int, int]]:
        most = min(_MOST_CONTEXT, self._engine.info.kv_tokens // 2)
        rows = [n for n in ROWS if n <= self._engine.config.max_running_requests]
        return [(n, c) for n in rows for c in CONTEXTS if c < self._most and n * c <= most]

    def measure(self, name: str) -> Costs:
        """All of it: a minute for a small model on a CPU. Of equal steps the faster one counts."""
        self._steps(2, 16)  # what is loaded at first use is no part of any step
        decode = _fastest([*self._decode()] for _ in range(_PASSES))
        firsts = _fastest([*self._prefill()] for _ in range(_PASSES))
        single = min(self._first(1, CONTEXTS[0]) for _ in range(_MANY))
        overhead = max(single - decode[0].seconds, 0.0)
        prefill = tuple(t._replace(seconds=max(t.seconds - overhead, 0.0)) for t in firsts)
        about = {"processor": processor(), "threads": self._engine.info.threads}
        about |= {"dtype": self._engine.info.dtype, "model": self._engine.info.name}
        return Costs(name, prefill, decode, overhead, about)

    def _prefill(self) -> Iterator[Timed]:
        for size, before in self.prefills:
            self._first(size, before)  # what is loaded or compiled for it is no part of any step
            times = [self._first(size, before) for _ in range(_FEW if size > _SMALL else _MANY)]
            yield Timed(size, before, median(times))
            self._done()

    def _decode(self) -> Iterator[Timed]:
        for rows, context in self.decodes:
            yield Timed(rows, context, self._steps(rows, context))
            self._done()

    def _first(self, size: int, before: int) -> float:
        """Seconds until the first token of a prompt of which `before` tokens are cached."""
        context = self._context(0, before)
        if before:
            self._run([context], 1)
        fresh = self._random.integers(0, self._vocabulary, size, dtype=np.int32)
        return self._run([np.concatenate((context, fresh))], 1)[0]

    def _steps(self, rows: int, context: int) -> float:
        """Seconds between tokens of as many requests that go on together."""
        prompts = [self._context(row + 1, context) for row in range(rows)]
        self._run(prompts, 1)
        moments = self._run(prompts, _STEPS)
        return median(np.diff(moments[2:]).tolist())

    def _context(self, number: int, size: int) -> Key:
        """The same for the same number, the longer ones going on from the shorter."""
        random = np.random.default_rng((_SEED, number))
        return random.integers(0, self._vocabulary, BEFORE[-1], dtype=np.int32)[:size]

    @property
    def _vocabulary(self) -> int:
        return self._engine.info.vocab_size

    def _run(self, prompts: Sequence[Key], out: int) -> list[float]:
        """The times when the first one's tokens came, in seconds since all were submitted."""
        params = SamplingParams(max_tokens=out, temperature=0.0, ignore_eos=True)
        requests = [self._engine.request(prompt, params) for prompt in prompts]
        began = time.perf_counter()
        return [
            time.perf_counter() - began
            for output in self._engine.client.run(requests)
            if output.request_id == requests[0].request_id
        ]


def _fastest(passes: Iterable[Sequence[Timed]]) -> tuple[Timed, ...]:
    """The fastest time of each step."""
    return tuple(map(min, zip(*passes, strict=True)))


def measured(config: EngineConfig, done: Callable[[], object] = lambda: None) -> Costs:
    """Load a model, measure it, and end it. Raises what loading raises."""
    plain = replace(config, speculative_algorithm="off", draft_corpus=None)
    with Engine(**{item.name: getattr(plain, item.name) for item, _ in flags_of(plain)}) as engine:
        return Calibration(engine, done).measure(engine.info.name)
