"""What the scheduler tells of a step, and what it counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from radixlm.core.request import FinishReason, TokenLogprob


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
    """One request's news: tokens, the end, or both."""

    request_id: str
    tokens: tuple[int, ...]
    prompt_tokens: int
    cached_tokens: int
    finish_reason: FinishReason | None = None
    matched_stop: str | int | None = None
    logprobs: tuple[TokenLogprob, ...] = ()
    prompt_logprobs: tuple[TokenLogprob, ...] = ()
    error: str | None = None


@dataclass(slots=True)
class Counters:
    """Totals since the start, in requests or tokens.

    prompt_tokens, cached_tokens: of requests admitted for the first time; their ratio is the hit
    rate. readmitted_*: the same after retractions, of which preemptions made room for requests of
    higher priority. computed_tokens: tokens that went through the model.
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

    @property
    def hit_rate(self) -> float:
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0
