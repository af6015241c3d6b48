"""Whatever happens to a tree: a draft is what followed the longest match of a request's last tokens
in its namespace, and nothing else; beside a model that compares all texts with all.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radixlm.cache.radix.tree import RadixTree
from radixlm.core.keys import as_key
from radixlm.drafts import own_tail, token_log
from radixlm.drafts.token_log import REACH
from radixlm.drafts.tree_drafts import BUNCH, TreeDrafts

NAMESPACES = ["a", "b"]
# No two of them, nor two pairs, have one hash, so that all are found.
TOKENS = [1, 2, 3, 4, 5, 6]
MOST = 12


def matched(text: Sequence[int], place: int, tokens: Sequence[int]) -> int:
    """How many of the last tokens stand before a place."""
    for size in range(min(place, len(tokens), REACH), 0, -1):
        if text[place - size : place] == tokens[-size:]:
            return size
    return 0


class Drafted:
    """A tree, its drafts, and all texts that each namespace has had."""

    def __init__(self, seed: int, page_size: int, ghosts: int, *, finds_short: bool = True) -> None:
        """finds_short: matches of less than four tokens are found, if perhaps not the longest."""
        self._finds_short = finds_short
        self._random = random.Random(seed)
        self._tree = RadixTree(page_size, ghost_budget=ghosts)
        self.drafts = TreeDrafts(self._tree, 1 << 20)
        self._texts: dict[str, list[list[int]]] = {name: [] for name in NAMESPACES}
        self._held = []
        self._slots = 0

    def step(self) -> None:
        name = self._random.choice(NAMESPACES)
        act = self._random.choice([self._insert, self._insert, self._write, self._use, self._evict])
        act(name)
        for each in NAMESPACES:
            if each not in self._tree.roots:
                self._texts[each] = []
        self._check(name)

    def _text(self, name: str) -> list[int]:
        """A text that is partly new."""
        text = []
        known = [text for texts in self._texts.values() for text in texts]
        for _ in range(self._random.randint(1, 4)):
            if known and self._random.random() < 0.7:
                other = self._random.choice(known)
                start = 0 if not text else self._random.randrange(len(other))
                text += other[start : start + self._random.randint(1, 50)]
            else:
                text += self._random.choices(TOKENS, k=self._random.randint(1, 20))
        return text

    def _insert(self, name: str) -> None:
        text = self._text(name)
        size = len(text) - len(text) % self._tree.page_size
        if size:
            slots = np.arange(self._slots, self._slots + len(text))
            self._slots += len(text)
            self._tree.insert(as_key(text), slots.astype(np.int32), name)
            self._texts[name].append(text[:size])

    def _write(self, name: str) -> None:
        if name not in self._tree.roots:
            return
        text, known = self._text(name) + self._text(name), 0
        while known < len(text):
            n_new = self._random.randint(1, 9)
            known += n_new
            self.drafts.wrote(name, text[:known], min(n_new, len(text) - known + n_new))
        if len(text) >= BUNCH:
            self._texts[name].append(text[: len(text) - len(text) % BUNCH])

    def _use(self, name: str) -> None:
        """Lock a match, or let one go: splits, and merges."""
        if self._held and self._random.random() < 0.5:
            self._tree.dec_lock_ref(self._held.pop(self._random.randrange(len(self._held))))
            return
        match = self._tree.match_prefix(as_key(self._text(name)), name)
        if match.length:
            self._held.append(self._tree.inc_lock_ref(match))

    def _evict(self, name: str) -> None:
        if self._tree.evictable_size:
            self._tree.evict(self._random.randint(1, self._tree.evictable_size))

    def _check(self, name: str) -> None:
        tokens = self._text(name)[-2 * BUNCH :]
        draft = self.drafts.propose(name, tokens, MOST)
        texts = self._texts[name]
        longest = max(
            [matched(text, at, tokens) for text in [*texts, tokens] for at in range(1, len(text))],
            default=0,
        )
        if draft is None:
            assert longest < 4
            assert not (longest and self._finds_short)
            return
        found = tokens[-draft.matched :] + list(draft.tokens)
        known = [*texts, tokens + list(draft.tokens)[:-1]]  # its own text goes on with itself
        assert any(_stands_in(found, text) for text in known)
        assert 0 < len(draft.tokens) <= MOST
        if longest >= 4:
            assert draft.matched == longest
        elif self._finds_short:
            assert draft.matched >= min(longest, 2)


def _stands_in(piece: list[int], text: list[int]) -> bool:
    return as_key(piece).tobytes() in as_key(text).tobytes()


@pytest.mark.parametrize("collide", [False, True])
@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**32), page_size=st.sampled_from([1, 4]), ghosts=st.sampled_from([0, 500])
)
def test_a_draft_follows_the_longest_match(
    seed: int, page_size: int, ghosts: int, *, collide: bool
) -> None:
    """collide: all hashes are alike, in all namespaces."""
    with pytest.MonkeyPatch.context() as patched:
        for module in (own_tail, token_log):
            patched.setattr(module, "WALK", 10_000)
        if collide:
            patched.setattr(token_log, "FACTORS", (0, 0, 0, 0))
        drafted = Drafted(seed, page_size, ghosts, finds_short=not collide)
        for _ in range(30):
            drafted.step()
