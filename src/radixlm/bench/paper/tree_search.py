"""A search that goes back: Monte Carlo tree search over one long trunk."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from radixlm.bench.paper.programs import Ask, Client, Draw, Program, scaled, together


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeSearch:
    """Expansions below a trunk. Sizes in tokens; each node adds `own` new ones and an answer.

    Upper confidence bounds choose what is expanded next; `at_once` nodes are chosen before the
    first of them is answered, each counted as a visit without reward meanwhile, so that they
    spread. A reward is a random number, seeded by the answer.
    """

    expansions: int
    trunk: int
    own: int
    out: int
    branching: int = 3
    at_once: int = 8
    exploration: float = math.sqrt(2)

    def programs(self, draw: Draw, scale: float) -> list[Program]:
        trunk, seed = draw.tokens(self.trunk), draw.number()
        return [
            partial(self._search, trunk, draw.parts(scaled(self.expansions, scale), self.own), seed)
        ]

    async def _search(
        self, trunk: list[int], moves: list[list[int]], seed: int, client: Client
    ) -> list[int]:
        root = _Node(None, trunk)
        best, highest = root, -1.0
        while moves:
            stage: list[_Node] = []
            while moves and len(stage) < self.at_once:
                parent = self._select(root)
                if parent is None:
                    break
                stage.append(parent.expand(moves.pop(0)))
            asks = [Ask(prompt=node.context, out=self.out) for node in stage]
            for node, reply in zip(stage, await together(client, asks), strict=True):
                reward = float(np.random.default_rng([seed, *reply.token_ids]).random())
                node.answered(reply.token_ids, reward)
                if reward > highest:
                    best, highest = node, reward
        return best.context

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


@dataclass(slots=True, eq=False)
class _Node:
    """context: token ids from the trunk on, the answer included once it is known."""

    parent: _Node | None
    context: list[int]
    known: bool = True
    visits: int = 0
    reward: float = 0.0
    children: list[_Node] = field(default_factory=list)

    def expand(self, move: list[int]) -> _Node:
        """Add a child that waits for its answer; it counts as a visit all the way up."""
        child = _Node(self, self.context + move, known=False)
        self.children.append(child)
        at: _Node | None = child
        while at is not None:
            at.visits += 1
            at = at.parent
        return child

    def answered(self, token_ids: list[int], reward: float) -> None:
        self.context = self.context + token_ids
        self.known = True
        at: _Node | None = self
        while at is not None:
            at.reward += reward
            at = at.parent
