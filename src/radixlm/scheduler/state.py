"""One request's life inside the scheduler."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from radixlm.cache import Lease
from radixlm.core.batch import Remap, ScheduledRow
from radixlm.core.errors import CacheError
from radixlm.core.keys import Key, Slots
from radixlm.core.misses import MissReport
from radixlm.core.request import GenerateRequest, TokenLogprob


class RequestState:
    """A request that waits or runs. It runs while it has a `lease`.

        tokens  0          computed                n_tokens          prompt + max_tokens
                | has keys and values | pending    | not known yet    )

    prefill_end: n_tokens when it was last admitted; what lies after it was decoded since.
    cached: while it waits, so many tokens are believed to be in the cache (see WaitingRoom).
    cached_tokens, miss: how many were when it was first admitted, and why no more.
    arrived: in seconds. queued: how long it waited until then.
    computing: it runs, and its prompt is not all computed yet.
    moved: the step in which it was last given tokens.

    Kept for its line: waits; returned, after a retraction; follows, the request that computes
    what it will take from the cache; stamp, which tells its present entry from dead ones.
    """

    __slots__ = (
        "arrival",
        "arrived",
        "cached",
        "cached_tokens",
        "computed",
        "computing",
        "follows",
        "lease",
        "miss",
        "moved",
        "n_tokens",
        "prefill_end",
        "prompt_logprobs",
        "queued",
        "remaps",
        "request",
        "returned",
        "row",
        "stamp",
        "tokens",
        "waits",
    )

    def __init__(self, request: GenerateRequest, arrival: int, arrived: float = 0.0) -> None:
        self.request = request
        self.arrival = arrival
        self.arrived = arrived
        self.queued: float | None = None
        self.n_tokens = request.key.size
        self.tokens: Key = np.zeros(request.key.size + request.max_tokens, dtype=np.int32)
        self.tokens[: self.n_tokens] = request.key
        self.computed = 0
        self.prefill_end = self.n_tokens
        self.lease: Lease | None = None
        self.row = -1
        self.remaps: list[Remap] = []
        self.cached = 0
        self.cached_tokens: int | None = None
        self.miss: MissReport | None = None
        self.computing = False
        self.moved = 0
        self.waits = False
        self.returned = False
        self.follows: RequestState | None = None
        self.stamp = 0
        self.prompt_logprobs: list[TokenLogprob] = []

    @property
    def prompt_length(self) -> int:
        return self.request.key.size

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
        those of the token before the first prompt token that still lacks a log-probability.
        """
        limit = self.n_tokens - 1
        lacking = self.next_prompt_logprob
        if self.request.params.prompt_logprobs is None or lacking >= self.prompt_length:
            return limit
        return min(limit, lacking - 1)

    @property
    def next_prompt_logprob(self) -> int:
        """Position of the first prompt token that lacks its log-probability, where they are asked
        for.
        """
        return self.request.params.first_prompt_logprob + len(self.prompt_logprobs)

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens[self.n_tokens : self.n_tokens + len(tokens)] = tokens
        self.n_tokens += len(tokens)


def scheduled_row(state: RequestState, slots: Slots) -> ScheduledRow:
    """What a running request does in a step: compute the next tokens into `slots`."""
    if state.lease is None:
        raise CacheError(f"request {state.request.request_id} was scheduled without a lease")
    stop = state.computed + slots.size
    remaps, state.remaps = tuple(state.remaps), []
    return ScheduledRow(
        request=state.request,
        row=state.row,
        tokens=state.tokens[:stop],
        start=state.computed,
        prompt_length=state.prompt_length,
        new_slots=slots,
        remaps=remaps,
        segments=state.lease.segments(),
        samples=stop == state.n_tokens,
    )
