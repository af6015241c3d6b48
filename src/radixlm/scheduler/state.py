"""One request's life inside the scheduler."""

from __future__ import annotations

import numpy as np

from radixlm.cache import Lease
from radixlm.core.batch import Remap
from radixlm.core.keys import Key
from radixlm.core.request import Request, TokenLogprob


class RequestState:
    """A request that waits or runs. It waits while `lease` is None.

        tokens  0          computed                n_tokens          prompt + max_tokens
                | has keys and values | pending    | not known yet    )

    prefill_end: n_tokens when it was last admitted; what lies after it was decoded since.
    """

    __slots__ = (
        "arrival",
        "cached_tokens",
        "computed",
        "lease",
        "n_tokens",
        "prefill_end",
        "prompt_logprobs",
        "remaps",
        "request",
        "row",
        "tokens",
    )

    def __init__(self, request: Request, arrival: int) -> None:
        self.request = request
        self.arrival = arrival
        self.n_tokens = request.key.size
        self.tokens: Key = np.zeros(request.key.size + request.max_tokens, dtype=np.int32)
        self.tokens[: self.n_tokens] = request.key
        self.computed = 0
        self.prefill_end = self.n_tokens
        self.lease: Lease | None = None
        self.row = -1
        self.remaps: list[Remap] = []
        self.cached_tokens: int | None = None
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
    def output_tokens(self) -> int:
        return self.n_tokens - self.prompt_length

    @property
    def room(self) -> int:
        """Tokens that may still be generated."""
        return self.tokens.size - self.n_tokens

    @property
    def max_match(self) -> int:
        """Tokens that may come from the cache. The last one never: its logits are wanted. Prompt
        log-probabilities need the logits of every prompt token that none was given for yet.
        """
        limit = self.n_tokens - 1
        given = len(self.prompt_logprobs)
        if self.request.params.prompt_logprobs is None or given >= self.prompt_length - 1:
            return limit
        return min(limit, given)

    def append(self, token: int) -> None:
        self.tokens[self.n_tokens] = token
        self.n_tokens += 1
