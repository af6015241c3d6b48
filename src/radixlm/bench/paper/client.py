"""A client of the engine that looks at the clock whenever tokens arrive."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from radixlm.bench.paper.bound import Finished
from radixlm.bench.paper.programs import Ask, Reply
from radixlm.build import AsyncEngine
from radixlm.core.request import RequestOutput
from radixlm.core.sampling import SamplingParams


@dataclass(frozen=True, slots=True)
class Measured:
    """One request as its client saw it. Times in seconds.

    first: from submission to the first token. gaps: between one token and the next.
    """

    finished: Finished
    cached_tokens: int
    first: float
    gaps: tuple[float, ...]


class MeasuringClient:
    """Asks an AsyncEngine, and keeps what came of every request in the order in which they ended.

    counted: whether the requests from now on are part of the measurement.
    done: called after each request.
    """

    def __init__(self, engine: AsyncEngine, done: Callable[[], object]) -> None:
        self.counted = True
        self.measured: list[Measured] = []
        self._engine = engine
        self._done = done

    async def ask(self, ask: Ask) -> Reply:
        counted = self.counted
        started = time.perf_counter()
        outputs: list[RequestOutput] = []
        moments: list[float] = []
        async for output in self._engine.stream(ask.prompt, _params(ask)):
            outputs.append(output)
            moments.append(time.perf_counter())
        whole = RequestOutput.joined(outputs)
        token_ids = list(whole.token_ids)
        self.measured.append(
            Measured(
                Finished(ask, token_ids, counted),
                whole.cached_tokens,
                moments[0] - started,
                _gaps(moments, [len(output.token_ids) for output in outputs]),
            )
        )
        self._done()
        return Reply(token_ids, sum(entry.logprob for entry in whole.prompt_logprobs))


def _params(ask: Ask) -> SamplingParams:
    return SamplingParams(
        max_tokens=ask.out,
        temperature=0.0 if ask.seed is None else 1.0,
        seed=ask.seed,
        ignore_eos=True,
        prompt_logprobs=0 if ask.scored else None,
        logprob_start_len=len(ask.prompt) - ask.scored if ask.scored else 0,
    )


def _gaps(moments: Sequence[float], counts: Sequence[int]) -> tuple[float, ...]:
    """Seconds between tokens. Those that arrived together share the time since the ones before;
    those that came with the first one took none.
    """
    gaps = [0.0] * (counts[0] - 1)
    for before, now, count in zip(moments, moments[1:], counts[1:], strict=False):
        gaps += [(now - before) / count] * count
    return tuple(gaps)


def percentile_ms(seconds: Sequence[float], percent: float) -> float | None:
    """That percentile in milliseconds; None of nothing."""
    return round(1_000 * float(np.percentile(seconds, percent)), 3) if seconds else None
