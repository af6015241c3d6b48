"""Drafts, right ones, garbage and another tenant's text: the right tokens, and no trace of them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from random import Random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.cache.components.window_slots import WindowSize
from radixlm.cache.radix.node import TreeNode
from radixlm.cache.radix.observer import TreeObserver
from radixlm.core.request import GenerateRequest, Namespace
from radixlm.drafts.draft import Draft, Sibling
from radixlm.drafts.tree_drafts import TreeDrafts
from radixlm.scheduler import Drafting
from tests.disk_bench import BLOCK, DiskBench
from tests.engines import make_request
from tests.invariants import check

CAPACITY = 64
# No answer has this token, and no prompt but another tenant's.
SECRET = 9
OTHERS = Namespace(cache_salt="others")


class Dreamer:
    """Drafts the truth up to a place, and then garbage: tokens of its own, and a secret one.

    answers: what each prompt is answered with; some drafts are right by it.
    """

    def __init__(self, seed: int, answers: dict[tuple[int, ...], list[int]]) -> None:
        self._random = Random(seed)
        self._answers = answers

    def propose(self, _namespace: Hashable, tokens: Sequence[int], most: int) -> Draft | None:
        if self._random.random() < 0.2:
            return None
        truth: list[int] = []
        for prompt, answer in self._answers.items():
            whole = [*prompt, *answer]
            if whole[: len(tokens)] == list(tokens):
                truth = whole[len(tokens) :]
        right = self._random.randrange(most + 1)
        garbage = [self._random.choice((0, 1, 2, SECRET)) for _ in range(most)]
        tokens = (*truth[:right], *garbage)[: self._random.randint(1, most)]
        after = self._random.randrange(len(tokens))
        others = *truth[after : self._random.randrange(most + 1)], *garbage[after:]
        other = others[: self._random.randint(1, most)]
        if not other or other[0] == tokens[after]:
            return Draft(tokens, "dreams", 3)
        return Draft(tokens, "dreams", 3, Sibling(after, other[: most - after], 3))


class Thief(TreeObserver):
    """Drafts what another namespace's tree holds, from the first token on."""

    def __init__(self) -> None:
        self._text: list[int] = []

    def made(self, leaf: TreeNode) -> None:
        if leaf.namespace == OTHERS:
            self._text = leaf.tokens().tolist()

    def propose(self, namespace: Hashable, _tokens: Sequence[int], most: int) -> Draft | None:
        known = namespace != OTHERS and self._text
        return Draft(tuple(self._text[:most]), "stolen", 32) if known else None


class Watcher(TreeObserver):
    """What the tree has ever held of the secret outside of the others' namespace: KV events, the
    picture and the journal are made of this.
    """

    def __init__(self) -> None:
        self.seen = 0

    def made(self, leaf: TreeNode) -> None:
        self.grown(leaf, len(leaf))

    def grown(self, leaf: TreeNode, _n_tokens: int) -> None:
        self.seen += leaf.namespace != OTHERS and SECRET in leaf.tokens()


def requests_of(seed: int, count: int) -> list[GenerateRequest]:
    random = Random(seed)
    made = []
    for index in range(count):
        theirs = random.random() < 0.3
        salt = random.choice(["", "", "x"])
        made.append(
            make_request(
                f"r{index}",
                [SECRET if theirs else random.randrange(2) for _ in range(random.randint(1, 12))],
                random.randint(1, 14),
                stop_token_ids=frozenset({2}) if index % 3 == 0 else frozenset(),
                namespace=OTHERS if theirs else Namespace(cache_salt=salt),
                priority=random.randrange(2),
                tenant="b" if theirs else "",
            )
        )
    return made


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    count=st.integers(1, 8),
    page_size=st.sampled_from([1, 4]),
    budget=st.integers(4, 30),
    reserve=st.sampled_from([0, 4]),
    window=st.sampled_from([0, 0, 5]),
    states=st.sampled_from([0, 0, 5, 16]),
    host=st.sampled_from([0, 8 * BLOCK]),
    siblings=st.sampled_from([0, 1, 8]),
)
def test_answers_are_the_same_and_nothing_is_left_of_drafts(
    seed: int,
    count: int,
    page_size: int,
    budget: int,
    reserve: int,
    window: int,
    states: int,
    host: int,
    siblings: int,
) -> None:
    """By garbage and by another tenant's text: the right tokens, the law in every step, states that
    are of these tokens alone, and no drafted token in the tree, in host memory, on disk or in what
    others' drafts are taken from.
    """
    answers: dict[tuple[int, ...], list[int]] = {}
    # States and windows go into no place together.
    window = 0 if states else window
    size = WindowSize.of(window, 0.01, CAPACITY, page_size, budget) if window else None
    thief, watcher = Thief(), Watcher()
    bench = DiskBench(
        CAPACITY,
        page_size=page_size,
        budget=budget,
        reserve=reserve,
        vocab_size=3,
        windows=size,
        host=host,
        copy="all",
        states=states,
        per_state=BLOCK if states else 0,
        checkpoint_interval=page_size,
    )
    tree = TreeDrafts(bench.cache.tree, 4_096)
    bench.cache.tree.watch(thief)
    bench.cache.tree.watch(watcher)
    sources = [Dreamer(seed, answers), tree, thief]
    rows = range(8, 8 + siblings) if page_size == 1 and not window and not states else ()
    bench.scheduler.drafting = Drafting(sources, 8, wrote=tree.wrote, sibling_rows=rows)
    requests = requests_of(seed, count)
    for request in requests:
        answers[tuple(request.key.tolist())] = bench.expected(request)
        bench.core.add(request)
    given: dict[str, list[int]] = {request.request_id: [] for request in requests}
    steps = 0
    while bench.core.has_work:
        for output in bench.step():
            given[output.request_id] += output.token_ids
        steps += 1
        assert steps < 500
        for state in bench.scheduler.running:
            assert state.running_lease.length == state.computed < state.n_tokens
    bench.settle()
    check(bench.scheduler)
    assert given == {request.request_id: bench.expected(request) for request in requests}
    assert bench.cache.usage().private == bench.cache.usage().locked == 0
    assert watcher.seen == 0
    theirs = OTHERS.packed()
    for namespace, tokens in [*bench.disk.blocks, *bench.host.blocks]:
        assert namespace == theirs or SECRET not in np.frombuffer(tokens, np.int32)
    for salt in ("", "x"):
        draft = tree.propose(Namespace(cache_salt=salt), [SECRET] * 4, 8)
        assert draft is None or draft.tokens == (SECRET,) * 8, "of its own last tokens"
    assert tree.propose(Namespace(), [SECRET], 8) is None
