"""Tokens that were written, and where the last ones of a text stood before."""

from __future__ import annotations

from operator import itemgetter
from struct import Struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from radixlm.core.keys import Key

TOKEN_BYTES = 4
_TOKEN_BITS = 8 * TOKEN_BYTES
# A match is compared no farther back than this; longer ones are right in 96 % already.
REACH = 32
# Of a match this long the newest places are compared, as many as WALK; below it the newest counts.
ORDERS = _LONG, _SHORT, _ONE = 4, 2, 1
WALK = 8
# Times as many places of the same hash are compared, since some are of other tokens.
_STRAY = 4
# Tokens of what a piece follows on that are written again; and the last of them, found again.
LEAD, FOUND_AGAIN = 48, 16
LEAST_CAPACITY = 1024
# Cells in a log's beginning, so that no comparison reaches before it.
_FIRST = REACH
_END = -1
_NO_TOKEN = np.uint64((1 << 64) + _END)
# Tokens of a log that are found anew in 15 ms.
_LARGE = 1 << 18

_last_four = Struct("=4i").unpack_from
# Odd numbers of 64 bits, one for each token back: bits 32 to 63 of the sum are a hash.
FACTORS = (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0xD6E8FEB86659FD93, 0xA0761D6478BD642F)
_SHIFT, _LOW = 32, (1 << 32) - 1
Places = npt.NDArray[np.int64]


class Found(NamedTuple):
    """The place where a text goes on, and how many of its last tokens stand before that place."""

    matched: int
    place: int


NOTHING = Found(0, 0)


def agreeing(before: memoryview | bytes, number: int, size: int) -> int:
    """How many last tokens two texts of `size` bytes share. number: that of the other one."""
    differ = int.from_bytes(before, "little") ^ number
    return (size * 8 - differ.bit_length()) // _TOKEN_BITS


class TokenLog:
    """Pieces of text one after the other, each after the last tokens of what it follows on:

        END ... | END lead piece | END lead piece | END
                      ^ a place: a token that is found by those before it

    No token is END, so neither matches nor what follows on them leave a piece. Hashes of the last
    four, two and one tokens lead to the newest place after them; of four, each place leads on to an
    older one. What is found is compared, so a hash can only miss. A full log grows to twice its
    size as far as it may, and else forgets its older half: O(1) a token, either way. Its tables are
    made anew when it grows. A large one, where that takes too long, begins as two copies of itself:
    hashes have one bit more then, and older places are found with either.

    base: tokens that were forgotten, so that `base + place` stays a place's number for good.

    >>> from radixlm.core.keys import as_key
    >>> log = TokenLog()
    >>> log.write(as_key([5]), as_key([6, 7, 8, 9]), most=4096)
    >>> found = log.find(as_key([1, 5, 6, 7]).tobytes())
    >>> found.matched, log.after(found.place, 8)
    (3, [8, 9])
    """

    def __init__(self, base: int = 0) -> None:
        self.base = base
        self.end = _FIRST
        self._tokens: Key = np.full(LEAST_CAPACITY, _END, dtype=np.int32)
        self._older = np.zeros(LEAST_CAPACITY, dtype=np.int32)
        self._tables = [np.zeros(LEAST_CAPACITY // 2, dtype=np.int32) for _ in ORDERS]
        self._view()

    @property
    def capacity(self) -> int:
        return self._tokens.size

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self._tokens, self._older, *self._tables))

    def capacity_for(self, n_tokens: int) -> int:
        """The capacity that it grows to, if it may, when a piece of `n_tokens` is written."""
        capacity, end = self.capacity, self.end + LEAD + n_tokens + 2
        while capacity < end:
            capacity *= 2
        return capacity

    def write(self, lead: Key, piece: Key, most: int) -> None:
        """Add a piece that follows on `lead`. most: the capacity that it may grow to; of a piece
        that does not fit, the end is taken, as much as a quarter of the log.
        """
        while self.capacity < self.capacity_for(piece.size) and 2 * self.capacity <= most:
            self._grow()
        if self.capacity < self.capacity_for(piece.size):
            if piece.size > (longest := self.capacity // 4):
                lead, piece = piece[-longest - LEAD : -longest], piece[-longest:]
            self.forget()
        lead = lead[-LEAD:]
        start = self.end + 1
        first = start + lead.size
        self.end = first + piece.size
        self._tokens[start:first] = lead
        self._tokens[first : self.end] = piece
        self._tokens[self.end] = _END
        self._index(start, first - min(lead.size, FOUND_AGAIN))

    def find(self, tail: bytes) -> Found:
        """The longest match of the last tokens, of those the newest; NOTHING where there is none.
        tail: (n,) int32s, as bytes; of more than REACH tokens the last ones count.
        """
        return max(self.places(tail, longest=True), key=itemgetter(0), default=NOTHING)

    def places(self, tail: bytes, *, longest: bool = False) -> list[Found]:
        """The newest matches of the last four tokens, and the newest ones of two and of one.
        longest: none but those that may be it.
        """
        tail = tail[-REACH * TOKEN_BYTES :]
        size = len(tail)
        first, second, third, last = _last_four(bytes(4 * TOKEN_BYTES) + tail, size)
        one = last * FACTORS[0]
        two = one + third * FACTORS[1]
        four = two + second * FACTORS[2] + first * FACTORS[3]
        number, cells, mask = int.from_bytes(tail, "little"), self._bytes, self._mask
        found: list[Found] = []
        place = self._by_four[four >> _SHIFT & mask]
        for _ in range(WALK * _STRAY):
            if not place or len(found) == WALK:
                break
            end = place * TOKEN_BYTES
            differ = int.from_bytes(cells[end - size : end], "little") ^ number
            matched = (size * 8 - differ.bit_length()) // _TOKEN_BITS
            if matched >= _LONG:
                found.append(Found(matched, place))
                if longest and not differ:
                    break
            place = self._next[place]
        if found and longest:
            return found
        for table, sum_, order in ((self._by_two, two, _SHORT), (self._by_one, one, _ONE)):
            place = table[sum_ >> _SHIFT & mask]
            end = place * TOKEN_BYTES
            if place and (matched := agreeing(cells[end - size : end], number, size)) >= order:
                found.append(Found(matched, place))
                if longest:
                    break
        return found

    def after(self, place: int, most: int) -> list[int]:
        """Read at most `most` tokens from a place on, all of one piece."""
        tokens: list[int] = self._cells[place : place + most].tolist()
        return tokens[: tokens.index(_END)] if _END in tokens else tokens

    def forget(self) -> None:
        """Forget the older half. O(capacity), so O(1) for each token that was written."""
        gone = self.end // 2
        kept = self.end - gone
        for cells in (self._tokens, self._older):
            cells[_FIRST : _FIRST + kept] = cells[gone : self.end].copy()
        self._tokens[_FIRST + kept] = _END
        gone -= _FIRST
        for places in (self._older, *self._tables):
            places -= gone
            places[places <= _FIRST] = 0
        self.base += gone
        self.end -= gone

    def shrink(self) -> None:
        """Forget the older half, and give its memory back."""
        self.forget()
        half = self.capacity // 2
        self._tokens, self._older = self._tokens[:half].copy(), self._older[:half].copy()
        self._tables = [np.maximum(*np.split(table, 2)) for table in self._tables]
        self._view()

    def _grow(self) -> None:
        size, mask = self.capacity, self._mask + 1
        self._release()
        for cells in (self._tokens, self._older):
            cells.resize(2 * size, refcheck=False)  # large ones are not copied
        for table in self._tables:
            table.resize(2 * mask, refcheck=False)
            table[mask:] = table[:mask] if size > _LARGE else 0
        self._view()
        if size <= _LARGE:
            for table in self._tables:
                table[:] = 0
            self._index(_FIRST, _FIRST)

    def _view(self) -> None:
        """Single cells are read in half the time through these."""
        self._cells, self._next = self._tokens.data, self._older.data
        self._bytes = self._cells.cast("B")
        self._by_four, self._by_two, self._by_one = (table.data for table in self._tables)
        self._mask = self._tables[0].size - 1

    def _release(self) -> None:
        for view in (self._bytes, self._cells, self._next):
            view.release()
        for view in (self._by_four, self._by_two, self._by_one):
            view.release()

    def _index(self, start: int, first: int) -> None:
        """Make the places from `first` on to be found, of pieces that begin at `start`."""
        text = self._tokens[start : self.end].astype(np.uint64)
        sums = np.zeros(text.size, dtype=np.uint64)
        low = max(first - start, 1)
        for back, factor in enumerate(FACTORS, 1):
            sums[back:] += text[:-back] * np.uint64(factor)
            if back in ORDERS and (low := max(low, back)) < text.size:
                places = low + np.flatnonzero(text[low:] != _NO_TOKEN)
                hashes = (sums[places] >> np.uint64(_SHIFT)).astype(np.int64) & self._mask
                places += start
                if back == _LONG:
                    hashes, places = self._chained(hashes, places)
                self._tables[ORDERS.index(back)][hashes] = places

    def _chained(self, hashes: Places, places: Places) -> tuple[Places, Places]:
        """Lead from each place to the one before it of the same hash. Both in order of hashes."""
        both = np.sort(hashes << _SHIFT | places)
        hashes, places = both >> _SHIFT, both & _LOW
        older = self._tables[0][hashes]
        again = np.flatnonzero(hashes[1:] == hashes[:-1])
        older[again + 1] = places[again]
        self._older[places] = older
        return hashes, places
