"""The programs that a workload is made of: they ask, wait for the answers, and ask again; and what
they need at least.

A program sees a Client and nothing else, so the same one runs against an engine and in a dry run,
whose client makes answers up. Content is random token ids, all drawn before the first request, so
that it does not depend on who is answered first.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from radixlm.cache import RadixTree
from radixlm.core.errors import ConfigError

T = TypeVar("T")
_EXPLORATION = math.sqrt(2)
# Tokens beyond what a pool must hold: pages that are not full, and what the engine reserves.
MARGIN = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRequest:
    """One request.

    prompt: token ids. out: tokens to generate, no fewer and no more.
    scored: how many of the prompt's last tokens are wanted with their log-probabilities.
    seed: draw the tokens with it; None takes the likeliest ones.
    """

    prompt: list[int]
    out: int
    scored: int = 0
    seed: int | None = None

    @property
    def reusable(self) -> int:
        """Prompt tokens that may come from a cache: what is predicted needs the logits of the
        token before it, so at least the last one is computed.
        """
        return len(self.prompt) - self.scored - 1


class Reply(NamedTuple):
    """token_ids: what was generated. logprob: the sum over the scored tokens, 0 without any."""

    token_ids: list[int]
    logprob: float = 0.0


class Client(Protocol):
    """Answers any number of requests at once."""

    async def ask(self, ask: BenchRequest, /) -> Reply: ...


# Runs to its end and returns the token ids of its result.
Program = Callable[[Client], Coroutine[Any, Any, list[int]]]


class Draw:
    """Random content. Equal seeds give equal tokens. vocabulary: those that are drawn from, or how
    many there are.
    """

    def __init__(self, vocabulary: int | Sequence[int], *seeds: int) -> None:
        ids = np.arange(vocabulary) if isinstance(vocabulary, int) else np.array(vocabulary)
        self._vocabulary = ids
        self._random = np.random.default_rng(seeds)

    def tokens(self, count: int) -> list[int]:
        places = self._random.integers(0, self._vocabulary.size, count)
        drawn: list[int] = self._vocabulary[places].tolist()
        return drawn

    def parts(self, count: int, size: int) -> list[list[int]]:
        """`count` times `size` token ids."""
        return [self.tokens(size) for _ in range(count)]

    def number(self) -> int:
        """A seed for something else."""
        return int(self._random.integers(0, 2**31))

    def fractions(self, count: int) -> list[float]:
        """Numbers from 0 to 1."""
        drawn: list[float] = self._random.random(count).tolist()
        return drawn

    def choice(self, among: int, count: int) -> list[int]:
        """Different numbers below `among`, rising."""
        return sorted(self._random.choice(among, count, replace=False).tolist())

    def different(self, count: int) -> list[int]:
        """Token ids of which no two are equal. Raises ConfigError where there are too few."""
        if count > self._vocabulary.size:
            raise ConfigError(
                f"{count} requests need as many token ids, not {self._vocabulary.size}"
            )
        drawn: list[int] = self._random.permutation(self._vocabulary)[:count].tolist()
        return drawn


@dataclass(frozen=True, slots=True)
class Search:
    """A search that goes back: which nodes Monte Carlo tree search expands.

    Chosen are those with the highest upper confidence bounds. `at_once` are chosen
    before the first of them is answered, each counted as a visit without reward meanwhile, so that
    they spread.

    rewards: of the nodes, in the order in which they are expanded, whatever is answered.
    """

    rewards: Sequence[float]
    branching: int = 3
    at_once: int = 8

    def stages(self) -> Iterator[list[tuple[int, int]]]:
        """(parent, node) of those that are to be asked for together: the root is 0, then they are
        numbered as they come. The next stage is chosen as if this one were answered.
        """
        root, count = _SearchNode(0), 0
        while count < len(self.rewards):
            stage: list[tuple[_SearchNode, _SearchNode]] = []
            while count < len(self.rewards) and len(stage) < self.at_once:
                parent = self._select(root)
                if parent is None:
                    break
                count += 1
                stage.append((parent, parent.expand(count)))
            yield [(parent.number, node.number) for parent, node in stage]
            for _, node in stage:
                node.answered(self.rewards[node.number - 1])

    @property
    def best(self) -> int:
        """The node with the highest reward."""
        return 1 + max(range(len(self.rewards)), key=self.rewards.__getitem__)

    def _select(self, node: _SearchNode) -> _SearchNode | None:
        """The next node to expand; None while all that could be chosen is unanswered."""
        while len(node.children) >= self.branching:
            known = [child for child in node.children if child.known]
            if not known:
                return None
            node = max(known, key=_SearchNode.promise)
        return node


@dataclass(slots=True, eq=False)
class _SearchNode:
    number: int
    parent: _SearchNode | None = None
    known: bool = True
    visits: int = 0
    reward: float = 0.0
    children: list[_SearchNode] = field(default_factory=list)

    def promise(self) -> float:
        """The upper confidence bound of a node."""
        visits = self.parent.visits if self.parent else self.visits
        doubt = math.sqrt(math.log(visits) / self.visits)
        return self.reward / self.visits + _EXPLORATION * doubt

    def expand(self, number: int) -> _SearchNode:
        """Add a child that waits for its answer; it counts as a visit all the way up."""
        child = _SearchNode(number, self, known=False)
        self.children.append(child)
        for node in child.path():
            node.visits += 1
        return child

    def answered(self, reward: float) -> None:
        self.known = True
        for node in self.path():
            node.reward += reward

    def path(self) -> Iterator[_SearchNode]:
        """The nodes from here to the root."""
        at: _SearchNode | None = self
        while at is not None:
            yield at
            at = at.parent


async def together(client: Client, asks: Iterable[BenchRequest]) -> list[Reply]:
    """Ask all at once; the replies in the order of the requests."""
    return await asyncio.gather(*(client.ask(ask) for ask in asks))


async def run_all(client: Client, programs: Iterable[Program]) -> list[list[int]]:
    """Start all programs at once and wait for the last."""
    return await asyncio.gather(*(program(client) for program in programs))


class CompletedRequest(NamedTuple):
    """A request and what it gave. counted: whether it is part of the measurement."""

    ask: BenchRequest
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


def best_possible(requests: Iterable[CompletedRequest]) -> Bound:
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


@dataclass(frozen=True, slots=True)
class WorkloadPlan:
    """requests: how many. Sizes in tokens, prompts with answers:

    distinct: of all requests, each shared prefix once. largest: of one request.
    at_once: of the requests that are under way together, shared prefixes once for each.
    """

    requests: int
    distinct: int
    largest: int
    at_once: int

    def pool_tokens(self, share: float | None) -> int:
        """A KV pool of `share` of the distinct tokens, but one that the largest request fits;
        None: one in which nothing is ever evicted and nobody waits for room, shared or not.
        """
        if share is None:
            return self.distinct + self.at_once + MARGIN * self.requests
        return max(math.ceil(share * self.distinct), self.largest + MARGIN)


class DryClient:
    """Answers at once, with random tokens, and counts."""

    def __init__(self, draw: Draw) -> None:
        self._sizes: list[int] = []
        self._draw = draw
        self._tree = RadixTree()
        self._under_way = 0
        self._most = 0

    async def ask(self, ask: BenchRequest) -> Reply:
        size = len(ask.prompt) + ask.out
        self._sizes.append(size)
        self._under_way += size
        self._most = max(self._most, self._under_way)
        await asyncio.sleep(0)  # all that start together are under way together
        self._under_way -= size
        token_ids = self._draw.tokens(ask.out)
        remember(self._tree, ask.prompt + token_ids)
        return Reply(token_ids)

    def plan(self) -> WorkloadPlan:
        return WorkloadPlan(
            len(self._sizes), self._tree.evictable_size, max(self._sizes), self._most
        )


def in_turns(ways: Sequence[T], rounds: int) -> Iterator[T]:
    """Each way once a round. Which goes first changes from round to round, so that no way always
    pays for what the first one loads.
    """
    for number in range(rounds):
        yield from ways[:: -1 if number % 2 else 1]
