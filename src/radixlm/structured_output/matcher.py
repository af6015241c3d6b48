"""Grammars on llguidance: a tokenizer as it wants it, grammars compiled, and followed token by
token, by one Matcher for each answer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from time import perf_counter, thread_time
from typing import Protocol

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor, LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper
from llguidance.numpy import (
    allocate_token_bitmask,
    fill_next_token_bitmask,
    fill_next_token_bitmask_par,
)

from radixlm.core.keys import Key
from radixlm.structured_output.grammar_source import GrammarError, one_line

Bits = npt.NDArray[np.int32]
Cut = Callable[[str], list[int] | None]

# Stands before a text to which the tokenizer would add a space, as at a text's beginning.
_LEAD = "\x02"
_LONGEST_LEAD = 4  # tokens
# A forced text is cut in parts of this length, and of each the end is left out, since the text
# after it may change it: so each step takes less than a millisecond, however long the text. The n
# answers of one request ask for the same cuts, so the last ones are remembered.
LONGEST_CUT = 512
_UNSURE = 64  # bytes
_REMEMBERED = 64
# Sets of tokens that a mask takes or leaves as a whole, where all their texts may come next; other
# tokens are walked byte by byte. llguidance's own, and two that halve the slowest masks: 16 bytes,
# the longest words of most vocabularies, for strings of limited length; small letters for patterns.
_IN_STRING = r'[^"\\\x00-\x1F\x7F]'
_SLICES = [
    r"[\x20\x0A\x0D\x09]+",
    "[a-z]+",
    *(_IN_STRING + times for times in ("{1,10}", "{1,16}", "{1,30}", "+")),
]

# A lexer state takes 2 kB, and few grammars come to 2,000. Items in a row are ways in which the
# text can be read so far: an ambiguous grammar takes time by their square, and holds the
# interpreter. Few grammars come to 50. An object comes to four for each optional property, which
# take less time (10 ms for 500), so schemas may have as many as llguidance allows by default. Items
# of a step bound how far masks and forced text look ahead: a list of 3,000 forced items comes to
# nearly 10,000.
MAX_READINGS, MAX_READINGS_OF_SCHEMAS = 1_400, 2_000
_OF_SCHEMAS = ('"json_schema"', "%json")
# A mask that takes longer is filled, and timed, by itself, and not for drafts.
_LIGHT = 0.002
# Of what is forced, at most this many tokens are found at a time.
MAX_FORCED = 128


class Vocabulary(Protocol):
    """The parts of a tokenizer that a table needs."""

    vocab_size: int
    special_ids: frozenset[int]

    def token_bytes(self, token: int, /) -> bytes: ...

    def encode_plain(self, text: str, /) -> Key: ...


@dataclass(frozen=True, slots=True)
class Table:
    """tokens: each id's bytes, none where the model has an id that the tokenizer lacks.

    There is one id more than the model has: llguidance needs an id that ends an answer, and takes
    this one where the model has none.
    """

    tokens: tuple[bytes, ...]
    special_ids: tuple[int, ...]
    eos_ids: tuple[int, ...]

    @classmethod
    def of(cls, vocabulary: Vocabulary, vocab_size: int, eos_ids: Iterable[int]) -> Table:
        """The table for a model with `vocab_size` ids. O(vocabulary)."""
        special = sorted(token for token in vocabulary.special_ids if token < vocab_size)
        return cls(
            tokens=(*map(vocabulary.token_bytes, range(vocab_size)), b""),
            special_ids=tuple(special),
            eos_ids=tuple(sorted(eos_ids)) or (vocab_size,),
        )

    def tokenizer(self, cut: Cut | None = None) -> LLTokenizer:
        """Make llguidance's tokenizer, which takes a tenth of a second.

        cut: gives a text's tokens as in training; without it the longest come first.
        """
        return LLTokenizer(
            TokenizerWrapper(_Wrapped(self, cut)),
            n_vocab=len(self.tokens),
            eos_token=list(self.eos_ids),
            slices=_SLICES,
        )


class _Wrapped:
    """The form in which llguidance takes a tokenizer."""

    def __init__(self, table: Table, cut: Cut | None) -> None:
        self.eos_token_id = table.eos_ids[0]
        self.bos_token_id = None
        self.tokens = table.tokens
        self.special_token_ids = table.special_ids
        self._cut = cut
        special = frozenset(table.special_ids)
        self._ids = {data: i for i, data in enumerate(table.tokens) if data and i not in special}
        self._longest = max(map(len, self._ids), default=0)
        self._cut_again = lru_cache(_REMEMBERED)(self._cut_all)

    def __call__(self, text: str) -> list[int]:
        if isinstance(text, bytes):
            raise TypeError("text is wanted")  # which is how it asks
        ids = list(self._cut_again(text[:LONGEST_CUT]))
        unsure = 0 if len(text) > LONGEST_CUT else _UNSURE
        while ids and unsure < _UNSURE:
            unsure += len(self.tokens[ids.pop()])
        return ids

    def _cut_all(self, text: str) -> tuple[int, ...]:
        found = None if self._cut is None else self._cut(text)
        if found is None or max(found, default=0) >= len(self.tokens):  # ids the model lacks
            return tuple(self._greedily(text.encode()))
        return tuple(found)

    def _greedily(self, data: bytes) -> list[int]:
        ids = []
        start = 0
        while start < len(data):
            stops = range(min(start + self._longest, len(data)), start, -1)
            longest = next((stop for stop in stops if data[start:stop] in self._ids), None)
            if longest is None:
                break  # no token begins with this byte: the model cannot write it
            ids.append(self._ids[data[start:longest]])
            start = longest
        return ids


def cutter(vocabulary: Vocabulary) -> Cut:
    """Cuts text from the middle of an answer into tokens, as the tokenizer does; None where the
    bytes of its tokens are not the text's.
    """

    def spelled(ids: list[int]) -> bytes:
        return b"".join(map(vocabulary.token_bytes, ids))

    def cut(text: str) -> list[int] | None:
        wanted = text.encode()
        plain: list[int] = vocabulary.encode_plain(text).tolist()
        if spelled(plain) == wanted:
            return plain
        led: list[int] = vocabulary.encode_plain(_LEAD + text).tolist()
        for place in range(1, _LONGEST_LEAD + 1):
            if spelled(led[place:]) == wanted:
                return led[place:]
        return None

    return cut


def compile_source(source: str, tokenizer: LLTokenizer) -> LLMatcher:
    """A matcher at the beginning of an answer, its first mask made, so that the first request has
    it for nothing, and a grammar that no answer can follow is found here.

    source: of `source_of`. Raises GrammarError. May take any time, or crash the process: see Trial.
    """
    has_schema = any(mark in source for mark in _OF_SCHEMAS)
    limits = LLParserLimits(
        max_lexer_states=20_000,
        step_max_items=10_000,
        max_items_in_row=MAX_READINGS_OF_SCHEMAS if has_schema else MAX_READINGS,
        verbose_errors=False,
    )
    matcher = LLMatcher(tokenizer, source, log_level=0, limits=limits)
    _raise_error(matcher)
    mask = allocate_token_bitmask(1, tokenizer.vocab_size)
    fill_next_token_bitmask(matcher, mask)
    _raise_error(matcher)
    if not np.any(mask):
        raise GrammarError("no answer is allowed")
    return matcher


def try_first_tokens(matcher: LLMatcher) -> None:
    """Raise GrammarError where the forced begin of an answer leads nowhere. It may take long, and
    holds the interpreter: only for a process of its own.
    """
    ahead = matcher.deep_copy()
    ahead.consume_tokens(matcher.compute_ff_tokens())
    _raise_error(ahead)


def _reason_of(matcher: LLMatcher) -> str | None:
    """The reason why a matcher cannot go on, in one line; None when it can."""
    return one_line(matcher.get_error()) if matcher.is_error() else None


def _raise_error(matcher: LLMatcher) -> None:
    reason = _reason_of(matcher)
    if reason is not None:
        raise GrammarError(reason)


class Weight:
    """Seconds that it took to follow a grammar by the last token.

    step: to accept it and find forced tokens. mask: to fill the mask after it.
    """

    __slots__ = ("mask", "step")

    def __init__(self) -> None:
        self.step = self.mask = 0.0

    @property
    def seconds(self) -> float:
        return self.step + self.mask


class Matcher:
    """An answer's place in its grammar. Used by one thread at a time.

    state: llguidance's, for a MaskFiller. weight: grows with the answer where a grammar is
    ambiguous. jumps: what is forced after a token comes as the tokenizer cuts it: it is `ahead`
    then, nothing else is allowed, and `state` is after it. masked: how many of its last masks, its
    own and those along a draft, could be filled; one at least.
    """

    __slots__ = ("_broken", "ahead", "jumps", "masked", "state", "weight")

    def __init__(self, state: LLMatcher) -> None:
        self.state = state
        self.weight = Weight()
        self.ahead: list[int] = []
        self.jumps = False
        self.masked = 1
        self._broken: str | None = None

    @property
    def complete(self) -> bool:
        """Whether the answer is whole and nothing can follow."""
        return self._ends and not self.ahead

    @property
    def _ends(self) -> bool:
        return self.state.is_stopped() and not self.state.is_error()

    @property
    def error(self) -> str | None:
        """The reason why the grammar cannot be followed any further, None when it can."""
        return self._broken or _reason_of(self.state)

    def give_up(self, error: BaseException) -> None:
        """Give up a matcher that broke: from now on it cannot be followed."""
        self._broken = f"{type(error).__name__}: {error}"

    def accept(self, tokens: Sequence[int]) -> bool:
        """Go on by `tokens`; False when the grammar does not allow them."""
        return all(map(self._go_on, tokens))

    def _go_on(self, token: int) -> bool:
        if self.ahead:
            return self.ahead.pop(0) == token
        try:
            if not self.state.consume_tokens([token]):
                return False
            if self.jumps and not self.state.is_stopped():
                forced = self.forced()[:MAX_FORCED]
                self.ahead = forced if forced and self.state.consume_tokens(forced) else []
        except BaseException as error:  # what llguidance panics with is no Exception
            self.give_up(error)
        return self._broken is None

    def copy(self) -> Matcher:
        """Make another one at the same place."""
        other = Matcher(self.state.deep_copy())
        other.ahead, other.jumps = [*self.ahead], self.jumps
        return other

    def along(self, draft: Sequence[int]) -> list[int]:
        """The part of a draft that is allowed, and what is forced after that; where masks take
        long, only that. Without the token that ends the answer: nothing is asked after it.
        O(draft).
        """
        at, allowed = self, list[int]()
        if not (self.ahead or self.weight.mask >= _LIGHT or self.error is not None):
            at = self.copy()
            for token in draft:
                if (at.ahead and at.ahead[0] != token) or not at.accept([token]):
                    break
                allowed.append(token)
        allowed += at.ahead
        return allowed[:-1] if at._ends else allowed

    def forced(self) -> list[int]:
        """The tokens that must come next, cut as the tokenizer cuts them; `accept` takes them.

        They end where the cut depends on the text that follows.
        """
        return self.state.compute_ff_tokens()


class MaskFiller:
    """Fills masks on a thread of its own, which hands them to llguidance's threads, none of which
    holds the interpreter. Nothing is started before the first mask is wanted.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._words = vocab_size // 32 + 1  # a Table has one id more
        self._thread: ThreadPoolExecutor | None = None
        self._executor: LLExecutor | None = None

    def start(
        self, matchers: Sequence[Matcher], drafts: Mapping[int, Sequence[int]] | None = None
    ) -> Future[Bits]:
        """(rows, vocab // 32 + 1) int32: bit t % 32 of word t // 32 allows token t. A row for each
        matcher, and after it one for each token of its draft. drafts: of some of them, by place.

        The row of a matcher that allows nothing, or has reached its limits, allows everything; its
        `error` says so. The matchers must not be used until it is done.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "radixlm-masks")
        return self._thread.submit(self._fill, list(matchers), drafts or {})

    def _fill(self, matchers: Sequence[Matcher], drafts: Mapping[int, Sequence[int]]) -> Bits:
        sizes = (1 + len(drafts.get(place, ())) for place in range(len(matchers)))
        *places, n_rows = accumulate(sizes, initial=0)
        bits = np.zeros((n_rows, self._words), dtype=np.int32)
        rows = []
        for place, (row, matcher) in enumerate(zip(places, matchers, strict=True)):
            if place in drafts or matcher.ahead:
                _fill_along(matcher, bits, row, drafts.get(place, ()))
            else:
                rows.append((row, matcher))
        light = [(row, matcher) for row, matcher in rows if matcher.weight.mask < _LIGHT]
        heavy = [(row, matcher) for row, matcher in rows if matcher.weight.mask >= _LIGHT]
        if light:
            begun = perf_counter()
            self._fill_all(light, bits)
            each = (perf_counter() - begun) / len(light)
            for _, matcher in light:
                matcher.weight.mask = each
        for row, matcher in heavy:
            begun = thread_time()
            _fill_one(matcher, bits, row)
            matcher.weight.mask = thread_time() - begun
        bits[:, -1] &= (1 << self._vocab_size % 32) - 1
        bits[~bits.any(axis=1)] = -1
        return bits

    def _fill_all(self, rows: Sequence[tuple[int, Matcher]], bits: Bits) -> None:
        """Several at a time; each by itself where that fails, to find the one that is broken."""
        if self._executor is None:
            self._executor = LLExecutor()
        try:
            pairs = [(matcher.state, row) for row, matcher in rows]
            fill_next_token_bitmask_par(self._executor, pairs, bits)
        except BaseException:  # a panic is no Exception
            for row, matcher in rows:
                _fill_one(matcher, bits, row)


def _fill_along(matcher: Matcher, bits: Bits, row: int, draft: Sequence[int]) -> None:
    """Fill the rows from `row` on, as far as the draft is allowed: no others are drawn."""
    begun, at, matcher.masked = thread_time(), matcher, 1
    for index, token in enumerate((*draft, None)):
        if at.ahead:
            bits[row + index].view(np.uint32)[at.ahead[0] // 32] = 1 << at.ahead[0] % 32
        else:
            _fill_one(at, bits, row + index)
        if at.error is not None:
            break
        matcher.masked = index + 1
        at = matcher.copy() if at is matcher else at
        if token is None or not at.accept([token]):
            break
    matcher.weight.mask = thread_time() - begun


def _fill_one(matcher: Matcher, bits: Bits, row: int) -> None:
    try:
        fill_next_token_bitmask(matcher.state, bits, row)
    except BaseException as error:  # it is the matcher's `error` from now on
        bits[row] = 0
        matcher.give_up(error)
