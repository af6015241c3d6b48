"""Drafts from the tree: what is found of it, for whom, and how much memory that may take."""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

import numpy as np
import pytest

from radixlm.cache.radix.tree import RadixTree
from radixlm.core.keys import as_key
from radixlm.drafts.draft import Draft, Sibling
from radixlm.drafts.token_log import LEAST_CAPACITY, TokenLog
from radixlm.drafts.tree_drafts import BUNCH, TreeDrafts

TEXT = list(range(100, 200))


@pytest.fixture
def tree() -> RadixTree:
    return RadixTree(ghost_budget=1000)


@pytest.fixture
def drafts(tree: RadixTree) -> TreeDrafts:
    return TreeDrafts(tree, 1 << 16)


def insert(tree: RadixTree, tokens: Sequence[int], namespace: str | None = None) -> None:
    tree.insert(as_key(tokens), np.arange(len(tokens), dtype=np.int32), namespace)


def words(size: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(0, 50_000, size).tolist()


def test_what_follows_in_the_tree_is_proposed(tree: RadixTree, drafts: TreeDrafts) -> None:
    insert(tree, TEXT)
    assert drafts.propose(None, [1, *TEXT[20:40]], 3) == Draft((140, 141, 142), "tree", 20)
    assert drafts.propose(None, as_key([1, *TEXT[95:]]), 3) is None
    assert drafts.propose(None, [1, 2, 3], 3) is None


def test_a_tree_that_was_there_before_is_known(tree: RadixTree) -> None:
    insert(tree, TEXT)
    assert TreeDrafts(tree, 1 << 16).propose(None, TEXT[:50], 1) == Draft((150,), "tree", 32)


def test_drafts_cross_nodes_however_they_were_cut(tree: RadixTree, drafts: TreeDrafts) -> None:
    insert(tree, TEXT)
    insert(tree, [*TEXT[:50], 1, 2, 3])
    insert(tree, [*TEXT, 4, 5, 6])
    assert drafts.propose(None, TEXT[:45], 8) == Draft((*range(145, 150), 1, 2, 3), "tree", 32)
    assert drafts.propose(None, TEXT[:99], 8) == Draft((199, 4, 5, 6), "tree", 32)
    assert drafts.propose(None, [9, *TEXT[48:51]], 8) == Draft((*range(151, 159),), "tree", 3)


def test_ghosts_are_drafted_until_their_namespace_is_forgotten(
    tree: RadixTree, drafts: TreeDrafts
) -> None:
    insert(tree, TEXT, "a")
    tree.evict(tree.evictable_size)
    assert drafts.propose("a", TEXT[:50], 1) is not None
    tree.forget_ghosts()
    assert drafts.propose("a", TEXT[:50], 1) is None
    assert drafts.nbytes == 0


def test_namespaces_do_not_share(tree: RadixTree, drafts: TreeDrafts) -> None:
    insert(tree, TEXT, "a")
    drafts.wrote("a", words(500), 500)
    for other in ("b", None):
        assert drafts.propose(other, TEXT[:50], 1) is None
        assert drafts.propose(other, words(500)[:70], 1) is None
        insert(tree, [1, 2, 3], other)
        assert drafts.propose(other, TEXT[:50], 1) is None


def test_what_running_requests_have_written_is_proposed(drafts: TreeDrafts) -> None:
    text = words(300)
    for size in range(1, 300):
        drafts.wrote("a", text[:size], 1)
    draft = drafts.propose("a", [1, 2, *text[40:100]], 4)
    assert draft == Draft(tuple(text[100:104]), "tree", 32)
    assert drafts.propose("a", text[:270], 4) is None  # no bunch yet
    assert drafts.propose("b", text[:100], 4) is None


def test_outputs_are_written_in_bunches(
    drafts: TreeDrafts, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    monkeypatch.setattr(TokenLog, "write", lambda *args: written.append(args[2].tolist()))
    text, known = words(1000), 0
    while known < 1000:
        known = min(known + 7, 1000)
        drafts.wrote("a", text[:known], min(7, known))
    assert functools.reduce(operator.iadd, written, []) == text[: 1000 - 1000 % BUNCH]
    assert len(written) == 1000 // BUNCH


def test_a_request_s_own_last_tokens_are_proposed_and_go_on_in_circles(drafts: TreeDrafts) -> None:
    assert drafts.propose("a", [1, 2, 3, 4, 9, 1, 2, 3, 4], 3) == Draft((9, 1, 2), "tree", 4)
    assert drafts.propose("a", [5, 1, 2, 1, 2, 1, 2], 5) == Draft((1, 2, 1, 2, 1), "tree", 4)
    assert drafts.propose("a", [], 5) is None


def test_own_tokens_count_before_others_that_match_no_better(
    tree: RadixTree, drafts: TreeDrafts
) -> None:
    insert(tree, [8, 1, 2, 3, 4, 60])
    assert drafts.propose(None, [1, 2, 3, 4, 61, 1, 2, 3, 4], 1) == Draft((61,), "tree", 4)
    assert drafts.propose(None, [1, 2, 3, 4, 61, 8, 1, 2, 3, 4], 1) == Draft((60,), "tree", 5)


def test_memory_is_bounded_over_all_namespaces(tree: RadixTree) -> None:
    drafts = TreeDrafts(tree, 8 * LEAST_CAPACITY)
    for seed in range(40):
        drafts.wrote(f"n{seed}", words(50 * (seed % 7 + 1), seed), 50 * (seed % 7 + 1))
        drafts.wrote("large", words(192, 1000 + seed), 192)
        assert drafts.capacity <= 8 * LEAST_CAPACITY
        assert drafts.nbytes == drafts.capacity * 14
        assert drafts.propose("large", words(192, 1000 + seed)[:150], 4) is not None
    assert drafts.propose("n0", words(50, 0), 1) is None
    assert drafts.propose("n39", words(300, 39)[:100], 1) is not None


def test_the_largest_namespace_gives_way(tree: RadixTree) -> None:
    drafts = TreeDrafts(tree, 8 * LEAST_CAPACITY)
    drafts.wrote("small", words(640), 640)
    for seed in range(1, 40):
        drafts.wrote("large", words(640, seed), 640)
    assert drafts.propose("small", words(640)[:100], 1) is not None


def test_what_the_log_has_lost_of_a_path_is_written_again_when_it_is_asked_for(
    tree: RadixTree,
) -> None:
    drafts = TreeDrafts(tree, 2 * LEAST_CAPACITY)
    insert(tree, TEXT)
    insert(tree, [*TEXT[:50], 7])
    for seed in range(10):
        drafts.wrote(None, words(500, seed), 500)
    assert drafts.propose(None, TEXT[:40], 1) is None
    tree.dec_lock_ref(tree.inc_lock_ref(tree.match_prefix(as_key(TEXT))))
    assert drafts.propose(None, TEXT[:40], 1) == Draft((140,), "tree", 32)
    assert drafts.propose(None, TEXT[:70], 1) == Draft((170,), "tree", 32)


def test_a_path_is_not_written_again_while_the_log_has_it(
    tree: RadixTree, drafts: TreeDrafts, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(tree, TEXT)
    monkeypatch.setattr(TokenLog, "write", lambda *_: pytest.fail("written"))
    tree.dec_lock_ref(tree.inc_lock_ref(tree.match_prefix(as_key(TEXT[:50]))))
    assert tree.stats.splits == 1


def test_all_can_be_forgotten(tree: RadixTree, drafts: TreeDrafts) -> None:
    insert(tree, TEXT, "a")
    drafts.clear()
    assert drafts.nbytes == 0
    assert drafts.propose("a", TEXT[:50], 1) is None
    insert(tree, words(50), "a")
    assert drafts.propose("a", words(50)[:40], 1) is not None


def test_a_sibling_is_how_an_older_place_goes_on(tree: RadixTree) -> None:
    drafts = TreeDrafts(tree, 4_096, siblings=True)
    insert(tree, [1, 2, 3, 4, 5, 6, 7, 8])
    insert(tree, [9, 2, 3, 4, 5, 6, 70, 80])
    drawn = drafts.propose(None, [1, 2, 3, 4, 5], 3)
    assert drawn == Draft((6, 7, 8), "tree", 5, Sibling(1, (70, 80), 4))
    assert drafts.propose("other", [1, 2, 3, 4, 5], 3) is None


def test_numbers_are_python_s(tree: RadixTree) -> None:
    """Also where the tail itself is one of two ways: rows are counted by them."""
    drafts = TreeDrafts(tree, 4_096, siblings=True)
    insert(tree, [1, 2, 3, 4, 5, 6, 7, 8, 9])
    drawn = drafts.propose(None, [20, 3, 4, 5, 6, 7, 71, 21, 2, 3, 4, 5, 6], 3)
    assert drawn is not None
    assert drawn.sibling is not None
    numbers = [*drawn.tokens, drawn.sibling.after, *drawn.sibling.tokens]
    assert {type(number) for number in numbers} == {int}
