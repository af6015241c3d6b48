"""A plan of a step, made before anything is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from radixlm.scheduler.state import RequestState


class Plan(NamedTuple):
    """A plan of what running requests compute in a step.

    decoding: those that decode, each with its tokens. prompts: the others, in their turns.
    budget: tokens for these, and for prompts that are admitted.
    """

    decoding: list[tuple[RequestState, int]]
    prompts: list[RequestState]
    budget: int

    @classmethod
    def of(
        cls,
        decoding: Iterable[RequestState],
        prompts: list[RequestState],
        budget: int,
        force: Callable[[RequestState, int], int],
    ) -> Plan:
        """Plan a token for each that decodes, and what grammars force of it: `Drafting.force`."""
        tokens = []
        for state in decoding:
            n_new = min(state.pending, 1 + budget)
            n_new += force(state, 1 + budget - n_new)
            budget -= n_new - 1
            tokens.append((state, n_new))
        return cls(tokens, prompts, budget)

    def tokens(self) -> list[tuple[RequestState, int]]:
        """All of them, the prompts with the chunks that the budget gives them."""
        left, chunks = self.budget, []
        for state in self.prompts:
            chunks.append((state, min(state.pending, left)))
            left -= chunks[-1][1]
        return self.decoding + chunks
