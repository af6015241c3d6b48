"""Whose turn it is, between tenants."""

from __future__ import annotations

from collections import Counter

# Tenants without a request whose lead over the others is remembered.
MOST_REMEMBERED = 1_000


class TokenFairness:
    """Counts the tokens that were computed for each tenant, so that the least served is next.

    Self-clocked fair queueing (Golestani, INFOCOM 1994), with tokens as the virtual time, as in
    Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024): who comes, or comes
    back, starts where the one admitted last is now, so that nobody saves up turns by being idle;
    or later, where it had more than that, so that nobody is rid of it by being idle for a moment.
    Every admission moves that point, so endless newcomers keep nobody waiting. While two tenants
    both have requests waiting, what they were served differs by no more than one request's prompt
    and what those that run generate. Tokens are counted, not how long a request keeps its place:
    where places are short and prompts are cached, long answers get more of them.
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
        """A request of `tenant` has ended; a tenant without any is forgotten, unless it was served
        more than the others.
        """
        self._active[tenant] -= 1
        if self._active[tenant]:
            return
        del self._active[tenant]
        served = self._served.pop(tenant)
        if not self._active:  # what one is given while nobody else asks is held against nobody
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
