"""The requests that benchmarks/peers.py sends: random token ids, equal for equal seeds."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import NamedTuple

import numpy as np

# Where tokenizers have their bytes and marks; text of these may be empty, or half a character.
FIRST_WORD = 300


class Ask(NamedTuple):
    """prompt: token ids. out: tokens to generate."""

    prompt: list[int]
    out: int


# Yields the requests of a stage, and is sent their answers' token ids.
Stages = Generator[list[Ask], list[list[int]], None]


class Draw:
    """Random token ids, equal for equal seeds."""

    def __init__(self, vocab_size: int, *seeds: int) -> None:
        self._random = np.random.default_rng(seeds)
        self._range = (min(FIRST_WORD, vocab_size // 2), vocab_size)

    def tokens(self, count: int) -> list[int]:
        drawn: list[int] = self._random.integers(*self._range, count).tolist()
        return drawn


def scaled(count: int, scale: float) -> int:
    return max(1, round(count * scale))


def shared_prefix(requests: int, shared: int, own: int, out: int, draw: Draw) -> Stages:
    """All at once: the same beginning, an end of their own."""
    prefix = draw.tokens(shared)
    yield [Ask(prefix + draw.tokens(own), out) for _ in range(requests)]


def chats(count: int, turns: int, own: int, out: int, draw: Draw) -> Stages:
    """Side by side, turn by turn, each on top of its history."""
    news = [[draw.tokens(own) for _ in range(count)] for _ in range(turns)]
    histories: list[list[int]] = [[] for _ in range(count)]
    for new in news:
        prompts = [history + tokens for history, tokens in zip(histories, new, strict=True)]
        answers = yield [Ask(prompt, out) for prompt in prompts]
        histories = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]


def trees(
    count: int, root: int, branching: int, depth: int, own: int, out: int, draw: Draw
) -> Stages:
    """Level by level, each thought with its answer is continued in several ways."""
    leaves = [draw.tokens(root) for _ in range(count)]
    levels = [
        [draw.tokens(own) for _ in range(count * branching**level)] for level in range(1, depth + 1)
    ]
    for level in levels:
        parents = [leaf for leaf in leaves for _ in range(branching)]
        prompts = [parent + tokens for parent, tokens in zip(parents, level, strict=True)]
        answers = yield [Ask(prompt, out) for prompt in prompts]
        leaves = [prompt + answer for prompt, answer in zip(prompts, answers, strict=True)]


class Workload(NamedTuple):
    what: str
    stages: Callable[[Draw, float], Stages]


WORKLOADS = {
    "W1": Workload(
        "64 requests: 1,000 tokens shared + 50 own, 32 out",
        lambda draw, scale: shared_prefix(scaled(64, scale), 1_000, 50, 32, draw),
    ),
    "W2": Workload(
        "8 chats x 6 turns of 100 tokens, 32 out",
        lambda draw, scale: chats(scaled(8, scale), 6, 100, 32, draw),
    ),
    "W3": Workload(
        "tree of thought: root of 800 tokens, branching 3, depth 3, 64 tokens, 32 out",
        lambda draw, scale: trees(scaled(1, scale), 800, 3, 3, 64, 32, draw),
    ),
    "W4": Workload(
        "16 requests of 500 tokens, nothing shared, 32 out",
        lambda draw, scale: shared_prefix(scaled(16, scale), 0, 500, 32, draw),
    ),
    "W5": Workload(
        "32 requests: 4,096 tokens shared + 20 own, 128 out",
        lambda draw, scale: shared_prefix(scaled(32, scale), 4_096, 20, 128, draw),
    ),
    "W6": Workload(
        "16 requests of 128 tokens, nothing shared, 64 out",
        lambda draw, scale: shared_prefix(scaled(16, scale), 0, 128, 64, draw),
    ),
}
# W6 is for benchmarks/quantized_served.py.
USUAL = ("W1", "W2", "W3", "W4", "W5")
