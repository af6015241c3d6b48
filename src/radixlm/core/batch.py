"""The input of one step (ScheduledBatch) and its result (StepResult): values only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from radixlm.core.keys import Key, Slots
from radixlm.core.request import GenerateRequest, TokenLogprob

# Rows of a request table, after those of requests, that siblings have in a step.
MOST_SIBLINGS: Final = 8


class Extent(NamedTuple):
    """A run of slots [start, stop) that hold consecutive tokens."""

    start: int
    stop: int


class Segment(NamedTuple):
    """A stretch [start, stop) of a row's context that lies in one node of the tree.

    node_id: equal ids mean the very same slots, in whichever row; None is the row's private tail.
    extents: where its keys and values lie, in token order; maximal runs, at least one.
    """

    node_id: int | None
    start: int
    stop: int
    extents: tuple[Extent, ...]


class Remap(NamedTuple):
    """A remap: from now on the row's tokens [start, start + len(slots)) lie in `slots`."""

    start: int
    slots: Slots


@dataclass(slots=True, eq=False)  # frozen ones take 1 us more to make
class ScheduledRow:
    """One request's part of a step: compute tokens[start : start + n_new].

        tokens   |  cached or computed before  |  n_new  |
                 0                           start     stop = len(tokens)

    row: its row in the request table, the same for as long as it runs. tokens: (stop,) every token
    up to the end of this step's part; a view, not to be kept. prompt_length: tokens after it were
    generated. remaps: to be applied, in order, before new_slots; the first one brings the cached
    prefix. new_slots: (n_new,) where the new tokens' keys and values go. segments: cover [0, stop)
    in order. samples: whether a token is drawn from the logits of the last one. drafted: how many
    of the last tokens are a draft, which tells nothing yet: a token is drawn before each of these,
    too. state: the slot of its state, which is that after the tokens before `start`; None where a
    model has none. checkpoints: after how many tokens, of these, it is copied, and to which slot.
    spares: the same, of those after which only a draft comes. ahead: how many tokens a draft head
    is to draft after those that are drawn.
    sibling: a row for the other way that the draft may go: it begins with the first token that
    differs, is computed along, and counts where that token is drawn. It is in no batch by itself.
    beside: of a sibling, the row in the request table whose slots are its own up to `start`.
    promised: its last token is not known yet: it is the one that the step before draws for it.
    """

    request: GenerateRequest
    row: int
    tokens: Key
    start: int
    prompt_length: int
    new_slots: Slots
    remaps: tuple[Remap, ...]
    segments: tuple[Segment, ...]
    samples: bool
    state: int | None = None
    checkpoints: tuple[tuple[int, int], ...] = ()
    spares: tuple[tuple[int, int], ...] = ()
    drafted: int = 0
    ahead: int = 0
    sibling: ScheduledRow | None = None
    beside: int | None = None
    promised: bool = False

    @property
    def stop(self) -> int:
        return self.tokens.size

    @property
    def known(self) -> int:
        """Tokens without its draft."""
        return self.tokens.size - self.drafted

    @property
    def draft(self) -> list[int]:
        draft: list[int] = self.tokens[self.known :].tolist()
        return draft

    def draws(self) -> list[ScheduledRow]:
        """The row as it is for each token that is drawn of it: with none of its draft, one, ..."""
        if not self.drafted and self.sibling is None:
            return [self]
        stops = range(self.known, self.stop + 1)
        own = [replace(self, tokens=self.tokens[:s], drafted=0, sibling=None) for s in stops]
        return own if self.sibling is None else own + self.sibling.draws()

    @property
    def n_draws(self) -> int:
        """The tokens that are drawn of it: `draws`."""
        return 1 + self.drafted + (0 if self.sibling is None else self.sibling.n_draws)

    @property
    def parts(self) -> tuple[ScheduledRow, ...]:
        """The row, and its sibling if it has one: what is computed."""
        return (self,) if self.sibling is None else (self, self.sibling)

    def taken(self, drawn: Sequence[int | None]) -> tuple[int, ...]:
        """The tokens that are as without a draft, of those that were drawn of it: as long as they
        are what was drafted, and the one that differs; then those of its sibling, if it begins with
        that one. None from a failure on.
        """
        return tuple(token for i in self.path(drawn) if (token := drawn[i]) is not None)

    def path(self, drawn: Sequence[int | None]) -> list[int]:
        """The places of what is `taken` among what was drawn."""
        path: list[int] = []
        for token, guess in zip(drawn, [*self.draft, None], strict=False):
            if token is None:
                return path
            path.append(len(path))
            if token != guess:
                break
        its = self.sibling
        if its is not None and its.start == self.known + len(path) - 1:
            first = 1 + self.drafted
            if drawn[len(path) - 1] == its.tokens[its.start]:
                path += (first + i for i in its.path(drawn[first:]))
        return path

    @property
    def n_new(self) -> int:
        return self.tokens.size - self.start


@dataclass(frozen=True, slots=True, eq=False)
class TokenMasks:
    """Masks of the tokens that may be drawn for the rows that follow a grammar.

    places: of these rows in the batch, rising. bits: (all their draws, at least vocab / 32) int32:
    bit t % 32 of word t // 32 allows token t; made while the batch is computed, needed when it is
    sampled.
    """

    places: tuple[int, ...]
    bits: Future[npt.NDArray[np.int32]]


class WindowMoves(NamedTuple):
    """Moves: from now on the tokens in `slots` lie, in layers with a window, in `window_slots`."""

    slots: Slots
    window_slots: Slots


class StateMoves(NamedTuple):
    """Moves: before anything is computed, `slots` get the states in `sources`, which none of the
    others is; EMPTY: the state before a first token.
    """

    sources: Slots
    slots: Slots


# Where a state is copied from that no token was read into.
EMPTY: Final = -1


@dataclass(frozen=True, slots=True, eq=False)
class ScheduledBatch:
    """The rows of one step, in depth-first order of the tree: readers of a node are neighbours.

    windows: what has changed of window slots since the last batch, where layers with a window have
    their own. states: the same of states, where a model has them.
    """

    rows: tuple[ScheduledRow, ...]
    masks: TokenMasks | None = None
    windows: WindowMoves | None = None
    states: StateMoves | None = None

    @property
    def parts(self) -> tuple[ScheduledRow, ...]:
        """The rows, each before its sibling: what is computed."""
        return tuple(part for row in self.rows for part in row.parts)

    @property
    def n_tokens(self) -> int:
        return sum(part.n_new for part in self.parts)


class Failure(NamedTuple):
    """The reason why a row gave no token, ever. sound: its first tokens whose keys and values are
    finite.
    """

    reason: str
    sound: int


class NewTokens(NamedTuple):
    """The tokens that sampled tokens have become.

    tokens: they, up to an end, or to one that can not be taken. text: what of the answer's text is
    certain by them. stop: the stop string that the last token
    completed. complete: the grammar lets nothing follow. error: why the request can not go on.
    pieces: the tokens and characters that are as if they had come in steps of their own, of all or
    of none.
    """

    tokens: tuple[int, ...]
    text: str = ""
    stop: str | None = None
    complete: bool = False
    error: str | None = None
    pieces: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class StepResult:
    """The result of a step, in the order of the batch's rows; the mappings are by row position.

    tokens: the sampled token, or None for a row that does not sample, or failed. more: tokens that
    were sampled after it, where a draft was right. failed: rows whose numbers are not finite; it
    does not affect the others. logprobs: for rows that sample and asked for them. prompt_logprobs:
    of the prompt tokens start + 1 ... (as far as they are prompt, and not before the first that is
    wanted), for rows that asked for them. kv_bytes_read: keys and values that attention read, over
    all layers; kv_bytes_of_rows: had each row read its own context. known: tokens after a row's
    sampled one that need not be asked for, as a replay has them. ahead: what a draft head drafts
    after the row's tokens. hidden: of pooled rows, the states that they need of
    this step, summed. flat: rows whose token takes longer to draw than the next step left time
    for; it is to be drawn in a step that none is launched behind.
    """

    tokens: tuple[int | None, ...]
    more: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    logprobs: Mapping[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)
    prompt_logprobs: Mapping[int, tuple[TokenLogprob, ...]] = field(default_factory=dict)
    failed: Mapping[int, Failure] = field(default_factory=dict)
    kv_bytes_read: int = 0
    kv_bytes_of_rows: int = 0
    known: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    ahead: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    hidden: Mapping[int, npt.NDArray[np.float32]] = field(default_factory=dict)
    flat: frozenset[int] = frozenset()

    def drawn(self, row: int) -> tuple[int, ...]:
        """All tokens that were sampled for a row, by its position."""
        token = self.tokens[row]
        return () if token is None else (token, *self.more.get(row, ()))
