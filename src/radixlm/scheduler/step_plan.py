"""A plan of a step, made before anything is given."""

from __future__ import annotations

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

    def tokens(self) -> list[tuple[RequestState, int]]:
        """All of them, the prompts with the chunks that the budget gives them."""
        left, chunks = self.budget, []
        for state in self.prompts:
            chunks.append((state, min(state.pending, left)))
            left -= chunks[-1][1]
        return self.decoding + chunks
