"""Bounds that no policy could have passed: hit rates in hindsight, for the order in which a run's
requests were admitted.

    no limit      a cache that keeps everything
    clairvoyant   the tokens that are used again soonest are kept; a policy that sees the future
    knowable      what is kept is judged by its class alone, whose reuse ages are known in advance
    placement     of models with states: the best places for checkpoints among the keys and values
                  that the run had, beside the states of running requests, see state_bounds
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import inf, log2
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from radixlm.cache.policies.reuse_ages import BINS, EDGES, bin_of, worths
from radixlm.core.keys import Key
from radixlm.formats.trace_lines import PrefixHasher
from radixlm.sim.state_bounds import placed

NO_LIMIT, CLAIRVOYANT, KNOWABLE = "no limit", "clairvoyant", "knowable"
PLACEMENT = "placement"
# Units that a history keeps at most; beyond it they are made twice as long.
_MOST_UNITS = 2**21
# Classes: hits, turns, and lengths in steps of half a power of two.
_MOST_HITS, _MOST_TURNS, _LENGTHS = 4, 7, 36
_CLASSES = (_MOST_HITS + 1) * (_MOST_TURNS + 1) * _LENGTHS
# What all classes together say counts in each as much as one part of middle size of its own.
_PRIOR = 1.0
# Of the leaves that are worth least as many are looked up at once.
_AT_ONCE = 32

Ints = npt.NDArray[np.int64]


class _Noted(NamedTuple):
    """prefixes: of each unit of a prompt and its answer what stands for all tokens up to its end.
    prompt: tokens that can be found of the prompt: all but its last. held: that had keys and values
    in the pool. running: requests that ran, this one included.
    """

    prefixes: npt.NDArray[np.uint64]
    prompt: int
    held: int
    running: int


class History:
    """Requests in the order of their admission, in units of as many tokens: a page's, and more
    where there are many, so that its memory is bounded: 16 bytes for each of `most_units`.
    """

    def __init__(self, page_size: int, most_units: int = _MOST_UNITS) -> None:
        self.unit = page_size
        self.prompt_tokens = 0
        self._most_units = most_units
        self.noted: list[_Noted] = []
        self._hasher = PrefixHasher(bytes(32))
        self._units = 0

    def note(
        self, prompt: Key, answer: Key, namespace: Hashable, held: int = 0, running: int = 1
    ) -> None:
        """A request that found what it found just now. Its answer's last token is not kept."""
        prefixes = self._hasher.prefixes(np.concatenate((prompt, answer[:-1])), str(namespace))
        kept = prefixes[self.unit - 1 :: self.unit].copy()
        self.noted.append(_Noted(kept, prompt.size - 1, held, running))
        self.prompt_tokens += prompt.size
        self._units += kept.size
        while self._units > self._most_units:
            self.unit *= 2
            self.noted = [each._replace(prefixes=each.prefixes[1::2].copy()) for each in self.noted]
            self._units = sum(each.prefixes.size for each in self.noted)

    def bounds(self, capacity: int, states: int = 0) -> dict[str, float]:
        """Hit rates by name, for a pool of `capacity` tokens, and of `states` where a model has
        some; empty without requests.
        """
        if not self.noted:
            return {}
        paths = _Paths(self)
        room = capacity // self.unit
        hits: dict[str, float] = {
            KNOWABLE: _knowable(paths, room),
            CLAIRVOYANT: _clairvoyant(paths, room),
            NO_LIMIT: _clairvoyant(paths, sum(paths.sizes)),
        }
        if states:
            slots = [max(0, states - each.running) for each in self.noted]
            hits[PLACEMENT] = placed(paths.sizes, paths.accesses, slots)
        return {
            name: round(self.unit * units / self.prompt_tokens, 6) for name, units in hits.items()
        }


@dataclass(frozen=True, slots=True)
class _Access:
    """parts: of its path, from the root. prompt: how many of them can be found. length: units.
    held: units of its prompt that had keys and values.
    """

    parts: list[int]
    prompt: int
    length: int
    held: int


class _Paths:
    """The tree of what requests share, whose parts no request ever saw in part.

    sizes: units of each part. above: the part before it, -1 for none.
    """

    def __init__(self, history: History) -> None:
        noted, unit = history.noted, history.unit
        lengths = np.array([each.prefixes.size for each in noted])
        ends = np.cumsum(lengths)
        prompts = np.array([each.prompt // unit for each in noted])
        _, ids = np.unique(np.concatenate([each.prefixes for each in noted]), return_inverse=True)
        starts = ends - lengths
        place = np.arange(ids.size) - np.repeat(starts, lengths)
        of_prompt = place < np.repeat(prompts, lengths)
        counts = np.bincount(ids)[ids], np.bincount(ids[of_prompt], minlength=ids.size)[ids]
        begins = place == 0
        for count in counts:  # fewer came this far than to the unit before
            begins[1:] |= count[1:] != count[:-1]
        at = np.flatnonzero(begins)
        _, parts = np.unique(ids[at], return_inverse=True)
        sizes = np.zeros(int(parts.max(initial=-1)) + 1, dtype=np.int64)
        sizes[parts] = np.diff(at, append=ids.size)
        above = np.full(sizes.size, -1)
        inner = place[at] > 0
        above[parts[inner]] = parts[np.flatnonzero(inner) - 1]
        self.sizes: list[int] = sizes.tolist()
        self.above: list[int] = above.tolist()
        self.accesses: list[_Access] = []
        first, last = np.searchsorted(at, starts), np.searchsorted(at, ends)
        middle = np.searchsorted(at, starts + prompts)
        listed = parts.tolist()
        for each, low, mid, high in zip(noted, first, middle, last, strict=True):
            prompt, held = int(mid - low), each.held // unit
            self.accesses.append(_Access(listed[low:high], prompt, each.prefixes.size, held))

    def next_uses(self) -> list[list[float]]:
        """The next use of each part of each access: the number of the access that asks for it
        again.
        """
        coming = [inf] * len(self.sizes)
        found = []
        for number in range(len(self.accesses) - 1, -1, -1):
            access = self.accesses[number]
            found.append([coming[part] for part in access.parts])
            for part in access.parts[: access.prompt]:
                coming[part] = number
        return found[::-1]

    def found(self, access: _Access, resident: list[int]) -> int:
        """Units of its prompt that are there."""
        units = 0
        for part in access.parts[: access.prompt]:
            units += resident[part]
            if resident[part] < self.sizes[part]:
                break
        return units


def _clairvoyant(paths: _Paths, room: int) -> int:
    """Units found. What is used last goes first, what never is at once: a part is used no later
    than those below it, so a child goes before its parent.
    """
    resident, due = [0] * len(paths.sizes), [inf] * len(paths.sizes)
    heap: list[tuple[float, int, int]] = []
    used = hits = 0
    for access, uses in zip(paths.accesses, paths.next_uses(), strict=True):
        hits += paths.found(access, resident)
        for depth, (part, use) in enumerate(zip(access.parts, uses, strict=True)):
            due[part] = use
            kept = paths.sizes[part] if use < inf else 0
            used += kept - resident[part]
            resident[part] = kept
            if kept:
                heappush(heap, (-use, -depth, part))
        while used > room:
            use, depth, part = heappop(heap)
            if -use != due[part] or not resident[part]:
                continue
            gone = min(used - room, resident[part])
            used -= gone
            resident[part] -= gone
            if resident[part]:
                heappush(heap, (use, depth, part))
    return hits


def _classes(paths: _Paths) -> Iterator[list[int]]:
    """The classes of each access's parts after it: how often they were found, how many requests
    built on one another up to there, and how long the request was.
    """
    hits, turns = [-1] * len(paths.sizes), [0] * len(paths.sizes)
    for access in paths.accesses:
        turn = max((turns[part] for part in access.parts if hits[part] >= 0), default=0)
        length = min(int(2 * log2(access.length + 1)), _LENGTHS - 1)
        classes = []
        for part in access.parts:
            if hits[part] < 0:
                turns[part] = turn + 1
            hits[part] += 1
            known = min(hits[part], _MOST_HITS), min(turns[part], _MOST_TURNS)
            classes.append((known[0] * (_MOST_TURNS + 1) + known[1]) * _LENGTHS + length)
        yield classes


def _knowable(paths: _Paths, room: int) -> int:
    """Units found by a policy that knows of each class how its reuse ages are distributed, and
    evicts the leaf that is worth least by that: see `worths`.
    """
    classes = list(_classes(paths))
    return _Judged(paths, _worths(paths, classes)).run(classes, room)


def _worths(paths: _Paths, classes: list[list[int]]) -> npt.NDArray[np.float64]:
    """(classes, bins) from how long what was of a class in each access took to be used again; a
    request is a unit of time.
    """
    total = len(paths.accesses)
    reused, kept = np.zeros((_CLASSES, BINS)), np.zeros((_CLASSES, BINS))
    uses = paths.next_uses()
    for number, access in enumerate(paths.accesses):
        for part, kind, use in zip(access.parts, classes[number], uses[number], strict=True):
            age = bin_of(int(min(use, total) - number))
            (reused if use < inf else kept)[kind, age] += paths.sizes[part]
    # Of what reached a bin, what the trace's end cut off in it counts as if it passed.
    reached = (reused + kept)[:, ::-1].cumsum(axis=1)[:, ::-1]
    of_all = reused.sum(axis=0) / np.maximum(reached.sum(axis=0), 1)
    prior = _PRIOR * max(sum(paths.sizes), 1) / max(len(paths.sizes), 1)
    hazards = (reused + prior * of_all) / (reached + prior)
    return worths(hazards)


class _Judged:
    """A cache of parts that evicts the leaf of the least worth. worths: by class and bin of age."""

    def __init__(self, paths: _Paths, worths: npt.NDArray[np.float64]) -> None:
        self._paths = paths
        self._worths = worths
        count = len(paths.sizes)
        self._resident = [0] * count
        self._live = [0] * count
        self._leaf = np.zeros(count, dtype=bool)
        self._kind = np.zeros(count, dtype=np.int64)
        self._last = np.zeros(count, dtype=np.int64)
        self._used = 0

    def run(self, classes: list[list[int]], room: int) -> int:
        hits = 0
        for number, (access, kinds) in enumerate(zip(self._paths.accesses, classes, strict=True)):
            hits += self._paths.found(access, self._resident)
            self._kind[access.parts] = kinds
            self._last[access.parts] = number
            for part in access.parts:
                self._keep(part)
            if self._used > room:
                self._evict(number, room)
        return hits

    def _keep(self, part: int) -> None:
        size, above = self._paths.sizes[part], self._paths.above[part]
        if not self._resident[part]:
            if above >= 0:
                self._live[above] += 1
                self._leaf[above] = False
            self._leaf[part] = not self._live[part]
        self._used += size - self._resident[part]
        self._resident[part] = size

    def _evict(self, now: int, room: int) -> None:
        heap: list[tuple[float, int, int]] = []
        while self._used > room:
            if not heap:
                heap = self._lowest(now)
            *_, part = heappop(heap)
            gone = min(self._used - room, self._resident[part])
            self._used -= gone
            self._resident[part] -= gone
            above = self._paths.above[part]
            if self._resident[part]:
                return
            self._leaf[part] = False
            if above >= 0:
                self._live[above] -= 1
                self._leaf[above] = not self._live[above]
                if self._leaf[above]:
                    last = int(self._last[above])
                    worth = float(self._worths[self._kind[above], bin_of(now - last)])
                    heappush(heap, (worth, last, above))

    def _lowest(self, now: int) -> list[tuple[float, int, int]]:
        """Some of the leaves that are worth least, as a heap; of equals what was used first."""
        leaves = np.flatnonzero(self._leaf)
        last = self._last[leaves]
        ages = np.searchsorted(EDGES, now - last, side="right") - 1
        worths = self._worths[self._kind[leaves], np.clip(ages, 0, BINS - 1)]
        if leaves.size > _AT_ONCE:
            some = np.argpartition(worths, _AT_ONCE)[:_AT_ONCE]
            worths, last, leaves = worths[some], last[some], leaves[some]
        heap = list(zip(worths.tolist(), last.tolist(), leaves.tolist(), strict=True))
        heapify(heap)
        return heap
