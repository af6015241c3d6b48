"""The hit rate that no order of admission can beat: each distinct prefix computed once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from radixlm.bench.paper.programs import Ask
from radixlm.cache import RadixTree


class Finished(NamedTuple):
    """A request and what it gave. counted: whether it is part of the measurement."""

    ask: Ask
    token_ids: list[int]
    counted: bool = True


@dataclass(frozen=True, slots=True)
class Bound:
    """prompt, cached: tokens of the counted requests; cached is the most that can be."""

    prompt: int
    cached: int

    @property
    def hit_rate(self) -> float:
        return self.cached / self.prompt if self.prompt else 0.0


def best_possible(requests: Iterable[Finished]) -> Bound:
    """Replay requests, given in the order in which they ended, through a cache without limits and
    with pages of one token. The last token of an answer is never computed, so never cached.

    Requests that are not counted come first. Then shorter prompts go before longer ones: a prompt
    that is the beginning of another finds its last token uncomputed, and one that depends on
    another's answer is longer than that one's prompt.
    """
    tree = RadixTree()
    prompt = cached = 0
    for ask, token_ids, counted in sorted(
        requests, key=lambda item: (item.counted, len(item.ask.prompt))
    ):
        if counted:
            prompt += len(ask.prompt)
            cached += tree.match_prefix(ask.prompt[: ask.reusable]).length
        remember(tree, ask.prompt + token_ids[:-1])
    return Bound(prompt, cached)


def remember(tree: RadixTree, tokens: list[int]) -> None:
    """Put tokens into a tree of which only the shape is wanted."""
    tree.insert(tokens, np.zeros(len(tokens), dtype=np.int32))
