"""An index of the prefixes that prompts share which wait or are being computed: known before any of
it is computed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator

import numpy as np

from radixlm.cache import Match, RadixTree, TreeNode
from radixlm.cache.radix.node import upward, walk
from radixlm.core.keys import Key, Slots
from radixlm.scheduler.state import Leader, RequestState


class PromptIndex:
    """A second radix tree: over the prompts that wait or are being computed. Its slots are all 0.

        root ── [system prompt] ─┬─ [question 1]   computing: its path is pinned
                lock_ref 3       ├─ [question 2]   waits
                pins 1           └─ [question 3]   waits

    A lock stands for a prompt whose path runs through, a pin for one of them that is being
    computed, or restored; so lock_ref - pins prompts wait below a node. Pages are the cache's, so
    whatever is found to be shared can be shared there. Every method costs the path, or what it
    yields. places: where each waiting prompt ends. ends: the same, by place. leaders: where those
    end that are being computed, in order of their start.
    """

    def __init__(self, page_size: int) -> None:
        self.tree = RadixTree(page_size)
        self.ends: dict[TreeNode, dict[RequestState, None]] = {}
        self.places: dict[RequestState, TreeNode] = {}
        self.leaders: dict[Leader, TreeNode] = {}
        self._no_slots: Slots = np.zeros(0, dtype=np.int32)
        self.arrivals = 0

    def __len__(self) -> int:
        return len(self.places) + len(self.leaders)

    def add(self, state: RequestState) -> None:
        """Enter what is known of a request that waits."""
        place = self._insert(state.known, state.namespace)
        self.places[state] = place
        self.ends.setdefault(place, {})[state] = None
        self.arrivals += 1

    def remove(self, state: RequestState) -> None:
        """Take out a request that waits."""
        self.tree.dec_lock_ref(self._take_out(state))
        self.tree.evict(self.tree.evictable_size)

    def start_computing(self, state: RequestState) -> None:
        """A request does not wait any more: its prompt is being computed."""
        self._lead(state, self._take_out(state))

    def start_restoring(self, leader: Leader) -> None:
        """Enter a prompt that no request waits with: it is being restored."""
        self._lead(leader, self._insert(leader.known, leader.namespace))

    def stop_computing(self, leader: Leader) -> None:
        """Take out one whose prompt was being computed, or restored."""
        self.tree.unpin(self.leaders.pop(leader))
        self.tree.evict(self.tree.evictable_size)

    def computing(self, state: RequestState, at: int) -> tuple[Leader, int] | None:
        """The leader that shares most of a waiting request that it can use, how many tokens; None
        up to `at`.
        """
        for node in upward(self.places[state]):
            if node.end <= at:
                return None
            usable = min(node.end, state.max_match)
            if node.pins and (leader := self._computing_below(node, usable)) is not None:
                return leader, node.end
        return None

    def sharing(self, key: Key, namespace: Hashable, at: int) -> Iterator[tuple[RequestState, int]]:
        """The waiting requests that share more than `at` tokens with `key`, and how many."""
        match = self.tree.match_prefix(key, namespace)
        shared, node = match.length, match.node
        came_from: TreeNode | None = None
        while node is not None and shared > at:
            yield from ((state, shared) for state in self.ends.get(node, ()))
            for child in node.children.values():
                if child is not came_from:
                    for deeper in walk(child):
                        yield from ((state, shared) for state in self.ends.get(deeper, ()))
            came_from, shared, node = node, node.start, node.parent

    def heaviest_first(self) -> Iterator[RequestState]:
        """The waiting requests, depth first: the child that most share, of equals the oldest."""
        stack = _lightest_first(self.tree.roots.values())
        while stack:
            node = stack.pop()
            yield from self.ends.get(node, ())
            stack.extend(_lightest_first(node.children.values()))

    def _insert(self, key: Key, namespace: Hashable) -> TreeNode:
        """The node where a prompt ends, locked."""
        if self._no_slots.size < key.size:
            self._no_slots = np.zeros(2 * key.size, dtype=np.int32)
        tree = self.tree
        root = tree.inc_lock_ref(Match(0, None, 0, namespace, tree.version))
        return tree.insert(key, self._no_slots[: key.size], start=root).node

    def _take_out(self, state: RequestState) -> TreeNode:
        """Take out a request that does not wait any more, from where it ends; its lock is left."""
        place = self.places.pop(state)
        ends = self.ends[place]
        del ends[state]
        if not ends:
            del self.ends[place]
        return place

    def _lead(self, leader: Leader, place: TreeNode) -> None:
        """Turn the lock of a prompt into a pin."""
        match = Match(place.end, place, len(place), leader.namespace, self.tree.version)
        self.leaders[leader] = self.tree.pin(match)
        self.tree.dec_lock_ref(place)

    def _computing_below(self, node: TreeNode, usable: int) -> Leader | None:
        """The first of the leaders whose path runs through a pinned `node`, of use up to there."""
        found = (each for each, place in self.leaders.items() if node in upward(place))
        return next((each for each in found if each.usable_from <= usable), None)


def _lightest_first(nodes: Iterable[TreeNode]) -> list[TreeNode]:
    heaviest_first = sorted(nodes, key=lambda node: node.pins - node.lock_ref)
    return heaviest_first[::-1]
