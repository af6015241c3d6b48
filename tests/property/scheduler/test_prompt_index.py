"""Hypothesis against PromptIndex: any order of calls, compared with a list of the prompts."""

from __future__ import annotations

from itertools import takewhile

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from radixlm.core.request import Namespace
from radixlm.scheduler.prompt_index import PromptIndex
from radixlm.scheduler.state import RequestState
from tests.engines import make_request
from tests.invariants import check

PAGES = st.lists(st.integers(0, 1), min_size=0, max_size=5)
REST = st.integers(0, 3)
SALTS = st.sampled_from(["", "", "x"])
WHICH = st.integers(0, 99)


class IndexMachine(RuleBasedStateMachine):
    """Prompts are pages of two kinds and a torn rest, so that they share in every way."""

    @initialize(page_size=st.sampled_from([1, 4]))
    def start(self, page_size: int) -> None:
        self.page_size = page_size
        self.index = PromptIndex(page_size)
        self.waiting: list[RequestState] = []
        self.computing: list[RequestState] = []
        self.arrivals = 0

    @rule(pages=PAGES, rest=REST, salt=SALTS)
    def add(self, pages: list[int], rest: int, salt: str) -> None:
        request = make_request(
            f"r{self.arrivals}", self._key(pages, rest), 8, namespace=Namespace(cache_salt=salt)
        )
        self._enter(RequestState(request, self.arrivals))

    @precondition(lambda self: self.waiting)
    @rule(which=WHICH)
    def remove_waiting(self, which: int) -> None:
        self.index.remove(self.waiting.pop(which % len(self.waiting)))

    @precondition(lambda self: self.waiting)
    @rule(which=WHICH)
    def start_computing(self, which: int) -> None:
        state = self.waiting.pop(which % len(self.waiting))
        self.index.start_computing(state)
        self.computing.append(state)

    @precondition(lambda self: self.computing)
    @rule(which=WHICH)
    def stop_computing(self, which: int) -> None:
        self.index.stop_computing(self.computing.pop(which % len(self.computing)))

    @precondition(lambda self: self.computing)
    @rule(which=WHICH, tokens=st.lists(st.integers(0, 1), max_size=4))
    def come_back(self, which: int, tokens: list[int]) -> None:
        """As a retraction does: with what was generated meanwhile."""
        state = self.computing.pop(which % len(self.computing))
        self.index.stop_computing(state)
        if new := tokens[: state.room]:
            state.extend(new)
        self._enter(state)

    @rule(pages=PAGES, rest=REST, salt=SALTS, at=st.integers(0, 8))
    def ask_sharing(self, pages: list[int], rest: int, salt: str, at: int) -> None:
        key = self._key(pages, rest)
        namespace = Namespace(cache_salt=salt)
        wanted = {
            state.arrival: shared
            for state in self.waiting
            if (shared := self._shared(state, key, namespace)) > at
        }
        found = list(self.index.sharing(np.array(key, dtype=np.int32), namespace, at))
        assert {state.arrival: shared for state, shared in found} == wanted
        assert len(found) == len(wanted)

    @precondition(lambda self: self.waiting)
    @rule(which=WHICH, at=st.integers(0, 8))
    def ask_computing(self, which: int, at: int) -> None:
        state = self.waiting[which % len(self.waiting)]
        shares = {other.arrival: self._shared_by(state, other) for other in self.computing}
        most = max(shares.values(), default=0)
        found = self.index.computing(state, at)
        if most <= at:
            assert found is None
        else:
            assert found is not None
            assert found[1] == most == shares[found[0].arrival]

    @invariant()
    def the_tree_is_sound(self) -> None:
        check(self.index)
        assert len(self.index) == len(self.waiting) + len(self.computing)

    @invariant()
    def the_walk_is_depth_first_and_heaviest_first(self) -> None:
        walk = list(self.index.heaviest_first())
        assert sorted(state.arrival for state in walk) == sorted(s.arrival for s in self.waiting)
        paths = [self._path(state) for state in walk]
        for prefix in {path[:end] for path in paths for end in range(len(path) + 1)}:
            below = [at for at, path in enumerate(paths) if path[: len(prefix)] == prefix]
            assert below == list(range(below[0], below[-1] + 1)), f"{prefix} is torn apart"
            branches = [paths[at][len(prefix) :][:1] for at in below]
            own = branches.count(())
            assert all(not branch for branch in branches[:own]), "the node's own come first"
            deeper = list(dict.fromkeys(branches[own:]))
            weights = [branches.count(branch) for branch in deeper]
            assert weights == sorted(weights, reverse=True), f"a lighter branch first: {weights}"

    def teardown(self) -> None:
        for state in self.waiting:
            self.index.remove(state)
        for state in self.computing:
            self.index.stop_computing(state)
        assert len(self.index) == 0
        check(self.index)

    def _enter(self, state: RequestState) -> None:
        self.index.add(state)
        self.waiting.append(state)
        self.arrivals += 1

    def _key(self, pages: list[int], rest: int) -> list[int]:
        torn = [7] * (rest % self.page_size)
        return [kind for kind in pages for _ in range(self.page_size)] + torn or [0]

    def _path(self, state: RequestState) -> tuple[object, ...]:
        """The namespace, then whole pages."""
        size, tokens = self.page_size, state.known.tolist()
        whole = len(tokens) - len(tokens) % size
        pages = [tuple(tokens[at : at + size]) for at in range(0, whole, size)]
        return (state.request.namespace, *pages)

    def _shared_by(self, state: RequestState, other: RequestState) -> int:
        return self._shared(state, other.known.tolist(), other.request.namespace)

    def _shared(self, state: RequestState, key: list[int], namespace: Namespace) -> int:
        if state.request.namespace != namespace:
            return 0
        pairs = zip(state.known.tolist(), key, strict=False)
        common = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        return common - common % self.page_size


TestPromptIndex = IndexMachine.TestCase
TestPromptIndex.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
