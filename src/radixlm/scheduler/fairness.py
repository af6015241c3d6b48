"""Fairness between tenants: who is admitted next, and who decodes in a step."""

from __future__ import annotations

from collections import Counter
from operator import attrgetter

from radixlm.scheduler.state import RequestState

# Tenants without a request whose lead over the others is remembered.
MOST_REMEMBERED = 1_000


# Reading this many tokens of its context costs a decoding request as much as a prompt's token.
CONTEXT_PER_TOKEN = 128
# Of what a tenant decodes, at least 1 / PARTS goes on, by cost.
PARTS = 4
# Steps for which it is remembered that several tenants had requests under way at a time.
MEMORY = 4_096


class TokenFairness:
    """Counts the tokens that were computed for each tenant, so that the least served is next.

    Self-clocked fair queueing (Golestani, INFOCOM 1994), with tokens as the virtual time, as in
    Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024). A tenant that comes, or
    comes back, starts where the one admitted last is now, so that no turns are saved up by being
    idle; or later, where it had more than that, so that a moment of being idle does not cancel it.
    Every admission moves that point, so endless new tenants keep no other waiting. While two
    tenants both have requests waiting, what they were served differs by no more than one request's
    prompt and what those that run generate. Tokens are counted, not how long a request keeps its
    row: where rows are short and prompts are cached, long answers get more of them.
    """

    def __init__(self) -> None:
        self._served: dict[str, int] = {}
        self._ahead: dict[str, int] = {}
        self._active: Counter[str] = Counter()
        self._now = 0

    def __len__(self) -> int:
        """Tenants that have requests under way."""
        return len(self._active)

    def enter(self, tenant: str) -> None:
        """A request of `tenant` has arrived."""
        if not self._active[tenant]:
            self._served[tenant] = max(self._now, self._ahead.pop(tenant, 0))
        self._active[tenant] += 1

    def leave(self, tenant: str) -> None:
        """A request has ended; a tenant without any is forgotten, unless it was served most."""
        self._active[tenant] -= 1
        if self._active[tenant]:
            return
        del self._active[tenant]
        served = self._served.pop(tenant)
        if not self._active:  # what a tenant was given while it was alone is not held against it
            self._now = max(self._now, served, *self._ahead.values())
            self._ahead.clear()
        elif served > self._now:
            self._ahead[tenant] = served
            if len(self._ahead) > MOST_REMEMBERED:
                del self._ahead[next(iter(self._ahead))]

    def served(self, tenant: str) -> int:
        """Tokens computed for an active tenant, counted from where it came in."""
        return self._served[tenant]

    def admit(self, tenant: str) -> None:
        """A request of `tenant` has been admitted, and charged for its first tokens."""
        self._now = max(self._now, self._served[tenant])

    def charge(self, tenant: str, tokens: int) -> None:
        """Tokens are being computed for a tenant that is active."""
        self._served[tenant] += tokens


class DecodeTurns:
    """Lets the many requests of one tenant that decode give way to another's first tokens; with one
    tenant it does nothing.

    *Giving way.* The first prompt of a step may be due to a tenant that was served less than others
    and decodes little: half of an even share of the step's budget, or less. Then every tenant that
    was served more goes on with a quarter of what it decodes, or with that much where it is more;
    its requests take turns, those that moved longest ago first. So a tenant that decodes little
    does not give way, and no request pauses for more than three or four steps.

    *Length.* A tenant that comes next waits for the step in flight. So in all other steps what
    decoding requests read counts against the budget, up to half of it, while several tenants have
    requests under way and for some steps after.

    step: the number of the present one.
    """

    def __init__(self, fairness: TokenFairness, budget: int) -> None:
        self._fairness = fairness
        self._budget = budget
        self.step = 0
        self._shared_until = 0
        self._gave_way = False

    def next_step(self) -> None:
        self.step += 1
        self._gave_way = False
        if len(self._fairness) > 1:
            self._shared_until = self.step + MEMORY

    def beside(self, prompt: RequestState, decoding: list[RequestState]) -> list[RequestState]:
        """The requests of `decoding` that go on in a step whose first prompt is this one."""
        costs: Counter[str] = Counter()
        for state in decoding:
            costs[state.request.tenant] += _cost(state)
        little = self._budget // (2 * len(self._fairness))
        tenant, served = prompt.request.tenant, self._fairness.served
        if costs[tenant] > little:
            return decoding
        room = {
            other: max(1, little, cost // PARTS)
            for other, cost in costs.items()
            if cost > little and served(other) > served(tenant)
        }
        self._gave_way = bool(room)
        chosen = []
        for state in sorted(decoding, key=attrgetter("moved")) if room else decoding:
            left = room.get(state.request.tenant, 1)
            if left > 0:
                chosen.append(state)
            if state.request.tenant in room:
                room[state.request.tenant] = left - _cost(state)
        return chosen

    def left_of_budget(self, decoding: list[RequestState]) -> int:
        """Tokens for prompts in a step in which these decode."""
        tokens = len(decoding)
        if self._gave_way or self.step >= self._shared_until:
            return self._budget - tokens
        cost = min(sum(map(_cost, decoding)), self._budget // 2)
        return self._budget - max(tokens, cost)


def _cost(state: RequestState) -> int:
    """The cost of a request's next token, in tokens of a prompt."""
    return 1 + state.n_tokens // CONTEXT_PER_TOKEN
