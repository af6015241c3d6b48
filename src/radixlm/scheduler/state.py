"""One request's life inside the scheduler, and what is counted of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import add
from typing import Protocol

import numpy as np

from radixlm.cache import Lease
from radixlm.core.batch import NewTokens, Remap, ScheduledRow
from radixlm.core.errors import CacheError
from radixlm.core.keys import Key, Slots
from radixlm.core.misses import POOL_SCALES, MissReport
from radixlm.core.moves import Place
from radixlm.core.reports import counter
from radixlm.core.request import (
    FinishReason,
    GenerateRequest,
    Namespace,
    RequestOutput,
    TokenLogprob,
)
from radixlm.drafts.draft import Draft
from radixlm.drafts.head import DraftedAhead
from radixlm.drafts.prediction import PredictedText

NO_TOKENS = NewTokens(())


@dataclass(slots=True)
class Counters:
    """Totals since the start, in requests or tokens. A field that is a metric is declared as one.

    prompt_tokens, cached_tokens: of requests admitted for the first time; their ratio is the hit
    rate. readmitted_*: the same after retractions.
    expected_tokens: what cached_tokens would be with pools of POOL_SCALES times the size, over the
    same host memory and disk.
    accepted_of: by a draft's source, its tokens and those that were right.
    host_cached_tokens, disk_cached_tokens: of cached_tokens, those that were read from there for
    the request itself.
    """

    prompt_tokens: int = counter("prompt_tokens", "Prompt tokens of admitted requests.")
    cached_tokens: int = counter("cached_tokens", "Prompt tokens that came from the cache.")
    host_cached_tokens: int = counter(
        "host_cached_tokens", "Of cached_tokens, those copied from host memory for a waiting one."
    )
    disk_cached_tokens: int = counter(
        "disk_cached_tokens", "Of cached_tokens, those read from disk for a waiting request."
    )
    readmitted_tokens: int = 0
    readmitted_cached: int = 0
    computed_tokens: int = counter("computed_tokens", "Tokens that went through the model.")
    output_tokens: int = counter("generation_tokens", "Tokens that were generated.")
    requests_finished: int = counter("num_requests", "Requests that finished.")
    requests_aborted: int = counter("num_aborted_requests", "Requests that were aborted.")
    retractions: int = counter("num_retractions", "Times a running request had to make room.")
    preemptions: int = counter("num_preemptions", "Of these, for one of higher priority.")
    drafts: int = counter("spec_decode_num_drafts", "Drafts that were computed.")
    draft_tokens: int = counter("spec_decode_num_draft_tokens", "Tokens of these.")
    accepted_tokens: int = counter(
        "spec_decode_num_accepted_tokens", "Of these, those that were right: each saved a step."
    )
    accepted_of: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    expected_tokens: tuple[int, ...] = (0,) * len(POOL_SCALES)

    def verify(self, draft: Draft, accepted: int) -> None:
        """A draft was computed, of which the first `accepted` tokens count."""
        self.drafts += 1
        self.draft_tokens += draft.size
        self.accepted_tokens += accepted
        self.accepted_of = counted(self.accepted_of, draft, accepted)

    def admit(self, state: RequestState, lease: Lease, *, again: bool) -> None:
        """A request is admitted, for the first time or again."""
        if again:
            self.readmitted_tokens += state.n_tokens
            self.readmitted_cached += lease.cached
            return
        self.prompt_tokens += state.prompt_length
        self.cached_tokens += lease.cached
        if state.miss is not None:
            self.host_cached_tokens += state.miss.from_host or 0
            self.disk_cached_tokens += state.miss.from_disk or 0
        self.expected_tokens = tuple(map(add, self.expected_tokens, lease.expected))


def counted(
    counts: Mapping[str, tuple[int, int]], draft: Draft, accepted: int
) -> Mapping[str, tuple[int, int]]:
    """Tokens that were drafted, and those that were right, by source, with one more draft."""
    drafted, right = counts.get(draft.source, (0, 0))
    return {**counts, draft.source: (drafted + draft.size, right + accepted)}


class Leader(Protocol):
    """A leader: its tokens enter the cache one after the other, so that waiting requests may follow
    it. It is a request that computes its prompt, or a restoration that reads stored blocks.

    known: its tokens. prefill_end: those up to here are followed, committed: in the cache so far.
    usable_from: no match ends before this many of them, so who shares fewer does not follow.
    computing: it has not ended yet.
    place: where they are read from; None for a request.
    """

    computing: bool

    @property
    def place(self) -> Place | None: ...
    @property
    def known(self) -> Key: ...
    @property
    def namespace(self) -> Namespace: ...
    @property
    def prefill_end(self) -> int: ...
    @property
    def committed(self) -> int: ...
    @property
    def usable_from(self) -> int: ...


@dataclass(slots=True, eq=False)
class RequestState:
    """A request that waits or runs. It runs while it has a `lease`.

        tokens  0          computed                n_tokens          prompt + max_tokens
                | has keys and values | pending    | not known yet    )

    prefill_end: n_tokens when it was last admitted; what lies after it was decoded since. cached:
    while it waits, how many tokens are believed to be in the cache (see WaitingRoom).
    cached_tokens, miss, queued: how many were when it was first admitted, why no more, and the
    seconds since `arrived`. computing: it runs, and its prompt is not all computed yet. moved: the
    step in which it was last given tokens. kept: where it began, or left the last checkpoint.
    branch: how many tokens agreed when it was admitted; the state after them was lacking if it had
    to compute some of these. restored: the tokens of it that were read while it waited, [first,
    stop), and from where, in order. computed_because: why what is stored of it is not read.
    drafts: see RequestOutput. ahead: how many tokens a head is to draft after this step; drafted:
    what it did after the last one. guesses: whether tokens are drafted that might be wrong.
    promised: of n_tokens, those that a step under way draws, see Promises. foreseen: whether steps
    may be scheduled before the tokens of those before them are known.
    For its queue: waits; returned, after a retraction; follows, the leader that computes what it
    will take from the cache; stamp, which marks its present entry among dead ones.
    """

    request: GenerateRequest
    arrival: int
    arrived: float = 0.0
    tokens: Key = field(init=False)
    n_tokens: int = field(init=False)
    prefill_end: int = field(init=False)
    computed: int = 0
    lease: Lease | None = None
    row: int = -1
    remaps: list[Remap] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    cached: int = 0
    cached_tokens: int | None = None
    miss: MissReport | None = None
    queued: float | None = None
    restored: list[tuple[Place, int, int]] = field(default_factory=list)
    computed_because: str = ""
    computing: bool = False
    drafts: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    guesses: bool = True
    prediction: PredictedText | None = None
    ahead: int = 0
    drafted: DraftedAhead | None = None
    promised: int = 0
    foreseen: bool = True
    moved: int = 0
    kept: int = 0
    branch: int = 0
    waits: bool = False
    returned: bool = False
    follows: Leader | None = None
    stamp: int = 0

    def __post_init__(self) -> None:
        key = self.request.key
        self.n_tokens = self.prefill_end = key.size
        self.tokens = np.zeros(key.size + self.request.max_tokens, dtype=np.int32)
        self.tokens[: key.size] = key
        if (predicted := self.request.prediction) is not None:
            self.prediction = PredictedText(predicted, key.size)
        asks = self.request.constraint is not None or self.request.pooled
        self.foreseen = not (asks or self.request.params.reads_tokens)

    @property
    def prompt_length(self) -> int:
        return self.request.key.size

    @property
    def namespace(self) -> Namespace:
        return self.request.namespace

    @property
    def place(self) -> Place | None:
        """See Leader."""
        return None

    @property
    def committed(self) -> int:
        """See Leader."""
        return 0 if self.lease is None else self.lease.committed

    @property
    def usable_from(self) -> int:
        """See Leader: what its tokens see is there when they are committed."""
        return 0

    @property
    def known(self) -> Key:
        """(n_tokens,) the prompt and what was generated so far; a view."""
        return self.tokens[: self.n_tokens]

    @property
    def pending(self) -> int:
        """Known tokens that are not computed yet."""
        return self.n_tokens - self.computed

    @property
    def decodes(self) -> bool:
        """Whether what is pending was generated, or is the last token of the prompt."""
        return self.pending == 1 or self.computed >= self.prefill_end

    @property
    def output_tokens(self) -> int:
        return self.n_tokens - self.prompt_length

    @property
    def room(self) -> int:
        """Tokens that may still be generated."""
        return self.tokens.size - self.n_tokens

    @property
    def max_match(self) -> int:
        """Tokens that may come from the cache. The last one never: its logits are wanted. So are
        those of the token before the first prompt token that still lacks a log-probability. None
        may where states of more are pooled.
        """
        if self.request.pooled.anew:
            return 0
        limit = self.n_tokens - 1
        lacking = self.next_prompt_logprob
        if self.request.params.prompt_logprobs is None or lacking >= self.prompt_length:
            return limit
        return min(limit, lacking - 1)

    @property
    def next_prompt_logprob(self) -> int:
        """Position of the first prompt token without log-probability, where they are wanted."""
        return self.request.params.first_prompt_logprob + len(self.prompt_logprobs)

    def take_prompt_logprobs(self, start: int, entries: Sequence[TokenLogprob]) -> None:
        """Take those that a step from token `start` on gives, but those that are there."""
        first = max(start + 1, self.request.params.first_prompt_logprob)
        self.prompt_logprobs.extend(entries[self.next_prompt_logprob - first :])

    @property
    def running_lease(self) -> Lease:
        """The lease of a request. Raises CacheError while it does not run."""
        if self.lease is None:
            raise CacheError(f"request {self.request.request_id} does not run")
        return self.lease

    def restore(self, place: Place, first: int, stop: int) -> None:
        """Tokens were read for it. What had been read of these before has been evicted since."""
        before = [(at, begin, min(end, first)) for at, begin, end in self.restored if begin < first]
        self.restored = [*before, (place, first, stop)]

    def restored_from(self, place: Place, cached: int) -> int:
        """How many of its first `cached` tokens were read from a place."""
        return sum(
            max(0, min(stop, cached) - first) for at, first, stop in self.restored if at is place
        )

    def end_by(self, new: NewTokens) -> tuple[FinishReason | None, str | int | None]:
        """Whether it ends with the tokens that it has just taken, and by which stop."""
        if new.error is not None:
            return FinishReason.ERROR, None
        if new.tokens[-1] in self.request.stop_token_ids:
            return FinishReason.STOP, new.tokens[-1]
        if new.stop is not None or new.complete:
            return FinishReason.STOP, new.stop
        return (FinishReason.LENGTH if self.room == 0 else None), None

    def output(
        self,
        new: NewTokens = NO_TOKENS,
        reason: FinishReason | None = None,
        matched: str | int | None = None,
        logprobs: tuple[TokenLogprob, ...] = (),
        *,
        first: bool = False,
    ) -> RequestOutput:
        """The output of a step for it. first: these are its first tokens."""
        return RequestOutput(
            request_id=self.request.request_id,
            text=new.text,
            token_ids=new.tokens,
            prompt_tokens=self.prompt_length,
            cached_tokens=self.cached_tokens or 0,
            finish_reason=reason,
            matched_stop=matched,
            logprobs=logprobs[: len(new.tokens)],
            prompt_logprobs=tuple(self.prompt_logprobs) if first else (),
            error=new.error,
            pieces=new.pieces if len(new.pieces) > 1 else (),
            drafts=self.drafts,
            miss=self.miss if first else None,
            queued=self.queued if first else None,
        )

    def outgrows(self, short_length: int | None) -> bool:
        """Whether it is so long that its namespace is another now, see `Namespace.of_length`."""
        if short_length is None:
            return False
        return self.namespace.of_length(self.n_tokens, short_length) != self.namespace

    def come_back(self, short_length: int | None) -> None:
        """Forget what was computed, after a retraction. It is as long as it has become."""
        self.computed = 0
        self.returned = True
        namespace = self.namespace.of_length(self.n_tokens, short_length)
        self.request = replace(self.request, namespace=namespace)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:  # mostly one, for which a slice takes four times as long
            self.tokens[self.n_tokens] = token
            self.n_tokens += 1


def scheduled_row(state: RequestState, slots: Slots) -> ScheduledRow:
    """The row of a running request in a step: compute the next tokens into `slots`."""
    stop = state.computed + slots.size
    remaps, state.remaps = tuple(state.remaps), []
    lease = state.running_lease
    return ScheduledRow(
        request=state.request,
        row=state.row,
        tokens=state.tokens[:stop],
        start=state.computed,
        prompt_length=state.prompt_length,
        new_slots=slots,
        remaps=remaps,
        segments=lease.segments(stop),
        samples=stop >= state.n_tokens,
        drafted=max(stop - state.n_tokens, 0),
        ahead=state.ahead,
        promised=state.promised > 0 and stop >= state.n_tokens,
        **lease.row_fields(),
    )
