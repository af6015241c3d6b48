"""Rules by which other engines draft without a model, as their documentation describes them.

A rule hears of a request's prompt, then of each token of its answer (`begin`, `take`, `end`), and
proposes what comes next.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt
from numba import njit

Tokens = npt.NDArray[np.int32]


class Rule(Protocol):
    def begin(self, prompt: Tokens) -> None: ...
    def take(self, token: int) -> None: ...
    def end(self) -> None: ...
    def propose(self, most: int) -> Sequence[int]: ...


class PromptLookup:
    """vLLM's `ngram`: the longest n-gram, from `most` down to `least` tokens, of a request's end in
    itself; of equal ones the first.
    """

    def __init__(self, least: int = 2, most: int = 5) -> None:
        self._sizes = range(most, least - 1, -1)

    def begin(self, prompt: Tokens) -> None:
        self._text: list[int] = []
        self._first: dict[tuple[int, ...], int] = {}
        for token in prompt.tolist():
            self.take(token)

    def take(self, token: int) -> None:
        end = len(self._text)
        for size in self._sizes:
            if end >= size:
                self._first.setdefault(tuple(self._text[end - size :]), end)
        self._text.append(token)

    def end(self) -> None: ...

    def propose(self, most: int) -> Sequence[int]:
        for size in self._sizes:
            if place := self._first.get(tuple(self._text[-size:])):
                return self._text[place : place + most]
        return ()


class NgramMod:
    """llama.cpp's `ngram-mod`: a table, shared by all requests, from the hash of n tokens to the
    newest token after them, looked up again for each token of a draft.
    """

    def __init__(self, n: int) -> None:
        self._n = n
        self._next: dict[tuple[int, ...], int] = {}

    def begin(self, prompt: Tokens) -> None:
        self._text: list[int] = []
        for token in prompt.tolist():
            self.take(token)

    def take(self, token: int) -> None:
        self._next[tuple(self._text[-self._n :])] = token
        self._text.append(token)

    def end(self) -> None: ...

    def propose(self, most: int) -> Sequence[int]:
        last, draft = self._text[-self._n :], list[int]()
        while len(draft) < most and (token := self._next.get(tuple(last))) is not None:
            draft.append(token)
            last = [*last[1:], token]
        return draft


# Of the last 4 to 1 tokens: how often they must have been seen, and how large the majority must be.
_OWN = {4: (1, 50), 3: (1, 50), 2: (2, 50), 1: (2, 66)}
_EARLIER = {4: (2, 66), 3: (2, 66), 2: (3, 66), 1: (4, 75)}


class LookupCache:
    """llama.cpp's `lookup`: counts of the tokens after each of the last 4 to 1 tokens, of the
    request itself, and of earlier answers, where more of a majority is wanted.
    """

    def __init__(self) -> None:
        self._earlier: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)

    def begin(self, prompt: Tokens) -> None:
        self._text: list[int] = []
        self._own: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
        for token in prompt.tolist():
            self.take(token)

    def take(self, token: int) -> None:
        for size in _OWN:
            if len(self._text) >= size:
                self._own[tuple(self._text[-size:])][token] += 1
        self._text.append(token)

    def end(self) -> None:
        for gram, counts in self._own.items():
            self._earlier[gram].update(counts)

    def propose(self, most: int) -> Sequence[int]:
        last, draft = self._text[-4:], list[int]()
        while len(draft) < most:
            token = self._best(last, self._own, _OWN)
            if token is None:
                token = self._best(last, self._earlier, _EARLIER)
            if token is None:
                break
            draft.append(token)
            last = [*last, token][-4:]
        return draft

    def _best(
        self,
        last: list[int],
        counts: dict[tuple[int, ...], Counter[int]],
        wanted: dict[int, tuple[int, int]],
    ) -> int | None:
        for size, (least, percent) in wanted.items():
            found = counts.get(tuple(last[-size:])) if len(last) >= size else None
            if found and found.total() >= least:
                [(token, count)] = found.most_common(1)
                if 100 * count >= percent * found.total():
                    return token
        return None


class _Text:
    """Texts one after the other, -1 before each, and for each token where it stood before."""

    def __init__(self, size: int, vocabulary: int) -> None:
        self.tokens = np.full(size, -1, dtype=np.int32)
        self.older = np.zeros(size, dtype=np.int32)
        self.newest = np.zeros(vocabulary, dtype=np.int32)
        self.end = 1

    def add(self, tokens: Sequence[int] | Tokens) -> None:
        self.end = _add(
            self.tokens, self.older, self.newest, self.end, np.asarray(tokens, np.int32)
        )


class SuffixDecoding:
    """Suffix decoding (Arctic Inference, vLLM's `suffix`): the request's prompt and answer are one
    suffix tree, all finished answers another. For each length of a match the most frequent tokens
    are followed, no more than that length (a factor of 1) and while their chance is 0.1 at least;
    the draft with the greatest sum of chances is taken, the request's own if equal.
    """

    def __init__(self, vocabulary: int, total: int) -> None:
        self._vocabulary = vocabulary
        self._finished = _Text(total, vocabulary)
        self._counts = np.zeros(vocabulary, dtype=np.int32)

    def begin(self, prompt: Tokens) -> None:
        self._own = _Text(prompt.size + 20_000, self._vocabulary)
        self._own.add(prompt)
        self._answer_from = self._own.end

    def take(self, token: int) -> None:
        self._own.add([token])

    def end(self) -> None:
        self._finished.end += 1
        self._finished.add(self._own.tokens[self._answer_from : self._own.end])

    def propose(self, most: int) -> Sequence[int]:
        last = self._own.tokens[max(self._own.end - 24, 1) : self._own.end]
        best: tuple[float, list[int]] = (0.0, [])
        for text in (self._own, self._finished):
            score, draft = _follow(
                text.tokens, text.older, text.newest, text.end, last, most, self._counts
            )
            if score > best[0]:
                best = score, draft.tolist()
        return best[1]


@njit(cache=True)
def _add(tokens, older, newest, end, new):  # type: ignore[no-untyped-def]
    for token in new:
        tokens[end] = token
        older[end] = newest[token]
        newest[token] = end
        end += 1
    return end


@njit(cache=True)
def _matches(tokens, older, place, end, last):  # type: ignore[no-untyped-def]
    """Places after the last tokens, and how many of these stand before each."""
    found, sizes, many = np.empty(4096, np.int32), np.empty(4096, np.int32), 0
    while place > 0 and many < 4096:
        if place + 1 < end and tokens[place + 1] >= 0:
            size = 1
            while size < len(last) and tokens[place - size] == last[-1 - size]:
                size += 1
            found[many], sizes[many] = place + 1, size
            many += 1
        place = older[place]
    return found[:many], sizes[:many]


@njit(cache=True)
def _frequent(tokens, end, places, counts):  # type: ignore[no-untyped-def]
    """The most frequent token at some places, or -1, and how often it is there."""
    top, most = tokens[0], 0  # the text's first one is -1
    for at in places:
        token = tokens[at] if at < end else -1
        if token >= 0:
            counts[token] += 1
            if counts[token] > most:
                top, most = token, counts[token]
    for at in places:
        if at < end and tokens[at] >= 0:
            counts[tokens[at]] = 0
    return top, most


@njit(cache=True)
def _follow(tokens, older, newest, end, last, most, counts):  # type: ignore[no-untyped-def]
    """The best draft of one suffix tree, 24 tokens deep: its score and its tokens."""
    draft, best = np.empty(0, np.int32), 0.0
    found, sizes = _matches(tokens, older, newest[last[-1]], end, last)
    longest = sizes.max() if len(sizes) else 0
    for size in range(1, longest + 1):
        alive = found[sizes >= size]
        path, length, score, chance = np.empty(most, np.int32), 0, 0.0, 1.0
        while length < min(most, size, 24 - size):
            top, count = _frequent(tokens, end, alive + length, counts)
            chance *= count / len(alive)
            if top < 0 or chance < 0.1:
                break
            alive = alive[tokens[alive + length] == top]
            path[length] = top
            score += chance
            length += 1
        if score > best:
            draft, best = path[:length].copy(), score
    return best, draft
