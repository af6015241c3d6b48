"""Tokens and log-probabilities that the rows of a step ask for, read from the device at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import accumulate, islice
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from radixlm.core.batch import ScheduledBatch, ScheduledRow
from radixlm.core.request import TokenLogprob
from radixlm.memory.staging import Fetched, Sending
from radixlm.runner.sampler import (
    FLAT,
    NOT_FINITE,
    Masks,
    Sampling,
    entries_of,
    logprobs_of,
)

# Takes what was drawn of some rows, and gives what is to count instead.
Swap: TypeAlias = Callable[[Sequence[ScheduledRow], list[int | None]], list[int | None]] | None
_Logprobs: TypeAlias = dict[int, tuple[TokenLogprob, ...]]


class PromptLogits(NamedTuple):
    """Rows [first, first + len(targets)) of all logits predict these tokens of a prompt; row: the
    prompt's place in the batch.
    """

    row: int
    first: int
    targets: tuple[int, ...]


class Answers(NamedTuple):
    """The tokens of each row that samples, the log-probabilities of those that asked, and of
    prompts; by place in the batch. flat: see `StepResult`.
    """

    drawn: dict[int, tuple[int, ...]]
    logprobs: _Logprobs
    prompt_logprobs: _Logprobs
    flat: frozenset[int]


class StepAnswers:
    """Tokens and log-probabilities of a step. Made before it is sent, so that their numbers are
    sent with it; asked for when its logits are launched, and read when the host wants them.

    sampling, prompts: as in `ForwardBatch`. tokens: (draws,) int64 on the device, of all draws, or
    below 0 where there is none, once they are asked for.
    """

    tokens: Tensor

    def __init__(
        self,
        batch: ScheduledBatch,
        sampling: Sequence[int],
        prompts: Sequence[PromptLogits],
        vocab: int,
        sending: Sending,
    ) -> None:
        self._batch, self._sending = batch, sending
        self._logits: Tensor | None = None
        draws = [batch.rows[place].draws() for place in sampling]
        self._draws = dict(zip(sampling, map(len, draws), strict=True))
        self._rows = rows = [row for its in draws for row in its]
        self._sampler = Sampling(rows, vocab, sending)
        tops = [row.request.params.logprobs for row in rows]
        self._tops = {at: top for at, top in enumerate(tops) if top is not None}
        # Which draws count is known when they are read: on a GPU all are asked for before.
        self._there: Tensor | None = None
        if self._tops and sending.device.type != "cpu":
            self._there = sending.put(np.array([*self._tops], dtype=np.int64))
        self._prompts = [
            (prompt, sending.put(np.array(prompt.targets, dtype=np.int64))) for prompt in prompts
        ]

    def ask(self, logits: Tensor) -> None:
        """Have them computed. logits: of `logit_rows`; kept until `read` or `let_go`."""
        self._logits = logits
        masks = self._masks()
        scores = logits[: len(self._rows)]
        if masks is not None and not self._tops.keys().isdisjoint(masks[0]):
            scores = scores.clone()  # masks forbid in place, log-probabilities are of all tokens
        self._asked = scores, masks
        self._numbers = self._numbers_of(logits, whole=False)

    def let_go(self) -> None:
        """Another step is launched before these are read: it overwrites logits."""
        self._logits = None

    def places(self, table_rows: Sequence[int]) -> list[int]:
        """The places in `tokens` of those that are drawn for rows of the request table."""
        first = accumulate(self._draws.values(), initial=0)
        found = {self._batch.rows[at].row: i for at, i in zip(self._draws, first, strict=False)}
        return [found[row] for row in table_rows]

    def read(self, swap: Swap = None) -> Answers:
        """Wait for them."""
        logits = self._logits
        numbers = self._numbers()
        if FLAT in numbers[0] and logits is not None:
            numbers = self._numbers_of(logits, whole=True)()
        self._logits = None
        found, own, *theirs = numbers
        drawn = [None if token in (NOT_FINITE, FLAT) else int(token) for token in found]
        if swap is not None:
            drawn = swap(self._rows, drawn)
        first, flat = 0, set()
        taken, paths = {}, {}
        for place, count in self._draws.items():
            draws = drawn[first : first + count]
            path = self._batch.rows[place].path(draws)
            taken[place] = tuple(token for i in path if (token := draws[i]) is not None)
            if path and first in self._tops:
                paths[place] = [first + i for i in path]
            if found[first] == FLAT:
                flat.add(place)
            first += count
        prompt_logprobs = {}
        for (prompt, _), its in zip(self._prompts, theirs, strict=True):
            top = self._batch.rows[prompt.row].request.params.prompt_logprobs or 0
            count = len(prompt.targets)
            entries = entries_of(_rows(its, count), prompt.targets, [top] * count)
            prompt_logprobs[prompt.row] = entries
        logprobs = self._logprobs(logits, own, drawn, paths)
        return Answers(taken, logprobs, prompt_logprobs, frozenset(flat))

    def _masks(self) -> Masks | None:
        masks = self._batch.masks
        if masks is None:
            return None
        places = [place for place, count in self._draws.items() for _ in range(count)]
        at = [index for index, place in enumerate(places) if place in masks.places]
        return at, masks.bits.result()

    def _numbers_of(self, logits: Tensor, *, whole: bool) -> Callable[[], list[list[float]]]:
        """Ask for the tokens of all draws, on a GPU the numbers of `logprobs_of` for those that
        asked, and the same of prompts, by one copy.
        """
        made = []
        if self._rows:
            self.tokens = self._sampler(*self._asked, whole=whole)
            made.append(self.tokens)
        if self._there is None and not self._prompts:
            there = self._sending.fetch(made[0]) if made else None
            return lambda: [[] if there is None else there().tolist(), []]
        if self._there is not None:
            own, targets = (each.index_select(0, self._there) for each in (logits, made[0]))
            made.append(logprobs_of(own, targets.clamp(min=0), max(self._tops.values())))
        for prompt, targets in self._prompts:
            part = logits[prompt.first : prompt.first + len(prompt.targets)]
            top = self._batch.rows[prompt.row].request.params.prompt_logprobs or 0
            made.append(logprobs_of(part, targets, top))
        there = self._sending.fetch(torch.cat([each.double().flatten() for each in made]))
        return partial(self._lists, there, [each.numel() for each in made])

    def _lists(self, there: Fetched, sizes: Sequence[int]) -> list[list[float]]:
        numbers = iter(there().tolist())
        lists = [[*islice(numbers, size)] for size in sizes]
        if not self._rows:
            lists.insert(0, [])
        if self._there is None:
            lists.insert(1, [])
        return lists

    def _logprobs(
        self,
        logits: Tensor | None,
        numbers: Sequence[float],
        drawn: Sequence[int | None],
        paths: Mapping[int, Sequence[int]],
    ) -> _Logprobs:
        """Name those of the draws that count, `paths`, by place. numbers: of all that were asked
        for, where they are there.
        """
        if not paths:
            return {}
        at = [*self._tops] if numbers else [at for path in paths.values() for at in path]
        targets = [drawn[each] or 0 for each in at]
        tops = [self._tops[each] for each in at]
        rows: Sequence[Sequence[float]] = _rows(numbers, len(at))
        if not numbers and logits is not None:  # on the CPU
            own = logits.index_select(0, torch.tensor(at))
            rows = logprobs_of(own, torch.tensor(targets), max(tops)).tolist()
        named = dict(zip(at, entries_of(rows, targets, tops), strict=True))
        return {place: tuple(named[each] for each in path) for place, path in paths.items()}


def _rows(numbers: Sequence[float], count: int) -> list[Sequence[float]]:
    width = len(numbers) // count
    return [numbers[width * row : width * (row + 1)] for row in range(count)]
