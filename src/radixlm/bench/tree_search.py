"""A search that goes back: which nodes Monte Carlo tree search expands."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

_EXPLORATION = math.sqrt(2)


@dataclass(frozen=True, slots=True)
class Search:
    """How nodes are chosen: those with the highest upper confidence bounds. `at_once` are chosen
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
        root, count = _Node(0), 0
        while count < len(self.rewards):
            stage: list[tuple[_Node, _Node]] = []
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

    def _select(self, node: _Node) -> _Node | None:
        """The next node to expand; None while all that could be chosen is unanswered."""
        while len(node.children) >= self.branching:
            known = [child for child in node.children if child.known]
            if not known:
                return None
            node = max(known, key=_Node.promise)
        return node


@dataclass(slots=True, eq=False)
class _Node:
    number: int
    parent: _Node | None = None
    known: bool = True
    visits: int = 0
    reward: float = 0.0
    children: list[_Node] = field(default_factory=list)

    def promise(self) -> float:
        """Its upper confidence bound."""
        visits = self.parent.visits if self.parent else self.visits
        doubt = math.sqrt(math.log(visits) / self.visits)
        return self.reward / self.visits + _EXPLORATION * doubt

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
