"""A search that goes back: Monte Carlo tree search over one long trunk."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

from radixlm.bench.paper.programs import Arguments, Ask, Client, Draw, Program, scaled, together


@dataclass(frozen=True, slots=True)
class Search:
    """How nodes are chosen: those with the highest upper confidence bounds. `at_once` are chosen
    before the first of them is answered, each counted as a visit without reward meanwhile, so that
    they spread.

    rewards: of the nodes, in the order in which they are expanded, whatever is answered.
    """

    rewards: Sequence[float]
    branching: int
    at_once: int
    exploration: float

    def stages(self) -> Iterator[list[tuple[int, int]]]:
        """(parent, node) of those that are to be asked for together: the root is 0, then they are
        numbered as they come. The next stage is chosen as if this one were answered.
        """
        root, count = _Node(0), 0
        while count < len(self.rewards):
            stage: list[_Node] = []
            parents = []
            while count < len(self.rewards) and len(stage) < self.at_once:
                parent = self._select(root)
                if parent is None:
                    break
                count += 1
                parents.append(parent.number)
                stage.append(parent.expand(count))
            yield [(parent, node.number) for parent, node in zip(parents, stage, strict=True)]
            for node in stage:
                node.answered(self.rewards[node.number - 1])

    @property
    def best(self) -> int:
        """The node with the highest reward."""
        return 1 + max(range(len(self.rewards)), key=self.rewards.__getitem__)

    def _select(self, node: _Node) -> _Node | None:
        """The next node to expand; None while all that could be chosen is unanswered."""
        while len(node.children) >= self.branching:
            open_ = [child for child in node.children if child.known]
            if not open_:
                return None
            parent = node
            node = max(open_, key=lambda child: self._promise(child, parent.visits))
        return node

    def _promise(self, node: _Node, parent_visits: int) -> float:
        doubt = math.sqrt(math.log(parent_visits) / node.visits)
        return node.reward / node.visits + self.exploration * doubt


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSearch:
    """Searches, each with `expansions` below a trunk. Sizes in tokens; each node adds `own` new
    ones and an answer. A reward is a random number.
    """

    searches: int = 1
    expansions: int
    trunk: int
    own: int
    out: int
    branching: int = 3
    at_once: int = 8
    exploration: float = math.sqrt(2)

    def calls(self, draw: Draw, scale: float) -> list[Arguments]:
        count = scaled(self.expansions, scale)
        return [
            {
                "trunk": draw.tokens(self.trunk),
                "moves": draw.parts(count, self.own),
                "search": Search(
                    draw.fractions(count), self.branching, self.at_once, self.exploration
                ),
                "out": self.out,
            }
            for _ in range(self.searches)
        ]

    def programs(self, draw: Draw, scale: float) -> list[Program]:
        return [partial(_search, **call) for call in self.calls(draw, scale)]


async def _search(
    client: Client, *, trunk: list[int], moves: list[list[int]], search: Search, out: int
) -> list[int]:
    contexts = [trunk]
    for stage in search.stages():
        asks = [Ask(prompt=contexts[parent] + moves[node - 1], out=out) for parent, node in stage]
        for ask, reply in zip(asks, await together(client, asks), strict=True):
            contexts.append(ask.prompt + reply.token_ids)
    return contexts[search.best]


@dataclass(slots=True, eq=False)
class _Node:
    number: int
    parent: _Node | None = None
    known: bool = True
    visits: int = 0
    reward: float = 0.0
    children: list[_Node] = field(default_factory=list)

    def expand(self, number: int) -> _Node:
        """Add a child that waits for its answer; it counts as a visit all the way up."""
        child = _Node(number, self, known=False)
        self.children.append(child)
        for node in child.path():
            node.visits += 1
        return child

    def answered(self, reward: float) -> None:
        self.known = True
        for node in self.path():
            node.reward += reward

    def path(self) -> Iterator[_Node]:
        """From here to the root."""
        at: _Node | None = self
        while at is not None:
            yield at
            at = at.parent
