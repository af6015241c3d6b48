"""What the scheduler tells of a step, and what it counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from radixlm.core.misses import POOL_SCALES, MissReport
from radixlm.core.request import FinishReason, TokenLogprob
from radixlm.scheduler.state import RequestState


class Taken(NamedTuple):
    """What becomes of a sampled token.

    tokens: it, and those that its grammar forces after it; none where it can not be taken.
    stop: the stop string that the text now holds; the last token completed it.
    complete: the grammar lets nothing follow.
    error: why the request can not go on.
    """

    tokens: tuple[int, ...]
    stop: str | None = None
    complete: bool = False
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Progress:
    """One request's news: tokens, the end, or both. miss, queued: with the first tokens only."""

    request_id: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    finish_reason: FinishReason | None = None
    matched_stop: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    error: str | None = None
    miss: MissReport | None = None
    queued: float | None = None


@dataclass(slots=True)
class Counters:
    """Totals since the start, in requests or tokens.

    prompt_tokens, cached_tokens: of requests admitted for the first time; their ratio is the hit
    rate. readmitted_*: the same after retractions, of which preemptions made room for requests of
    higher priority. computed_tokens: tokens that went through the model. expected_tokens: what
    cached_tokens would be with pools of POOL_SCALES times the size.
    """

    prompt_tokens: int = 0
    cached_tokens: int = 0
    readmitted_tokens: int = 0
    readmitted_cached: int = 0
    computed_tokens: int = 0
    output_tokens: int = 0
    finished: int = 0
    aborted: int = 0
    retractions: int = 0
    preemptions: int = 0
    expected_tokens: list[int] = field(default_factory=lambda: [0] * len(POOL_SCALES))

    def admit(self, prompt: int, cached: int, expected: Sequence[int]) -> None:
        """A prompt is admitted for the first time."""
        self.prompt_tokens += prompt
        self.cached_tokens += cached
        for place, tokens in enumerate(expected):
            self.expected_tokens[place] += tokens

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


def end_of(state: RequestState, taken: Taken) -> tuple[FinishReason | None, str | int | None]:
    """Whether a request ends with what it has just taken, and by which stop."""
    if taken.error is not None:
        return FinishReason.ERROR, None
    if taken.tokens[-1] in state.request.stop_token_ids:
        return FinishReason.STOP, taken.tokens[-1]
    if taken.stop is not None or taken.complete:
        return FinishReason.STOP, taken.stop
    return (FinishReason.LENGTH if state.room == 0 else None), None


def progress_of(
    state: RequestState, tokens: tuple[int, ...], reason: FinishReason | None
) -> Progress:
    """A request's news, as far as they are the same for all."""
    return Progress(
        request_id=state.request.request_id,
        tokens=tokens,
        prompt_tokens=state.prompt_length,
        cached_tokens=state.cached_tokens or 0,
        finish_reason=reason,
    )
