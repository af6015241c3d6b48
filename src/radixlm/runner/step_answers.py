"""Tokens and log-probabilities that the rows of a step ask for, read from the device at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from radixlm.core.batch import ScheduledBatch, ScheduledRow
from radixlm.core.request import TokenLogprob
from radixlm.memory.staging import Sending
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


class StepAnswers:
    """Tokens and log-probabilities of a step. Made before it is sent, so that their numbers are
    sent with it.

    sampling, prompts: as in `ForwardBatch`.
    """

    def __init__(
        self,
        batch: ScheduledBatch,
        sampling: Sequence[int],
        prompts: Sequence[PromptLogits],
        vocab: int,
        sending: Sending,
    ) -> None:
        self._batch, self._sampling = batch, sampling
        draws = [(place, row) for place in sampling for row in batch.rows[place].draws()]
        self._places, self._rows = [place for place, _ in draws], [row for _, row in draws]
        self._sampler = Sampling(self._rows, vocab, sending)
        # Of all draws: which of them count is known when they are read.
        tops = [row.request.params.logprobs for row in self._rows]
        self._at = [at for at, top in enumerate(tops) if top is not None]
        self._tops = [top for top in tops if top is not None]
        self._there = sending.put(np.array(self._at, dtype=np.int64))
        self._prompts = [
            (prompt, sending.put(np.array(prompt.targets, dtype=np.int64))) for prompt in prompts
        ]

    def read(
        self, logits: Tensor, swap: Swap = None
    ) -> tuple[dict[int, tuple[int, ...]], _Logprobs, _Logprobs]:
        """The tokens of each row that samples, the log-probabilities of those that asked, and of
        prompts; by place in the batch. logits: of `logit_rows`.
        """
        masks = self._masks()
        scores = logits[: len(self._rows)]
        if masks is not None and not {*masks[0]}.isdisjoint(self._at):
            scores = scores.clone()  # masks forbid in place, log-probabilities are of all tokens
        numbers = self._numbers(logits, scores, masks, whole=False)
        if FLAT in numbers[0]:
            numbers = self._numbers(logits, scores, masks, whole=True)
        found, own, *theirs = numbers
        drawn = [None if token == NOT_FINITE else int(token) for token in found]
        if swap is not None:
            drawn = swap(self._rows, drawn)
        first = 0
        taken, paths = {}, {}
        for place in self._sampling:
            row = self._batch.rows[place]
            draws = drawn[first : first + row.n_draws]
            taken[place] = row.taken(draws)
            paths[place] = [first + i for i in row.path(draws)]
            first += row.n_draws
        prompt_logprobs = {}
        for (prompt, _), its in zip(self._prompts, theirs, strict=True):
            top = self._batch.rows[prompt.row].request.params.prompt_logprobs or 0
            count = len(prompt.targets)
            entries = entries_of(_rows(its, count), prompt.targets, [top] * count)
            prompt_logprobs[prompt.row] = entries
        return taken, self._logprobs(own, drawn, paths), prompt_logprobs

    def _masks(self) -> Masks | None:
        masks = self._batch.masks
        if masks is None:
            return None
        at = [index for index, place in enumerate(self._places) if place in masks.places]
        return at, masks.bits.result()

    def _numbers(
        self, logits: Tensor, scores: Tensor, masks: Masks | None, *, whole: bool
    ) -> list[list[float]]:
        """The tokens of all draws, and the numbers of `logprobs_of`, by one copy."""
        tokens = self._sampler(scores, masks, whole=whole) if self._rows else self._there
        if not (self._at or self._prompts):
            return [tokens.tolist() if self._rows else [], []]
        made = [tokens, self._there]
        if self._at:
            own = logits.index_select(0, self._there)
            made[1] = logprobs_of(own, tokens.index_select(0, self._there), max(self._tops))
        for prompt, targets in self._prompts:
            part = logits[prompt.first : prompt.first + len(prompt.targets)]
            top = self._batch.rows[prompt.row].request.params.prompt_logprobs or 0
            made.append(logprobs_of(part, targets, top))
        numbers = iter(torch.cat([each.double().flatten() for each in made]).tolist())
        return [[*islice(numbers, each.numel())] for each in made]

    def _logprobs(
        self,
        numbers: Sequence[float],
        drawn: Sequence[int | None],
        paths: Mapping[int, Sequence[int]],
    ) -> _Logprobs:
        """Name those of the draws that count, `paths`, by place. numbers: of all that were asked
        for.
        """
        if not self._at:
            return {}
        targets = [drawn[at] or 0 for at in self._at]
        entries = entries_of(_rows(numbers, len(self._at)), targets, self._tops)
        named = dict(zip(self._at, entries, strict=True))
        return {
            place: tuple(named[at] for at in path)
            for place, path in paths.items()
            if path and path[0] in named
        }


def _rows(numbers: Sequence[float], count: int) -> list[Sequence[float]]:
    width = len(numbers) // count
    return [numbers[width * row : width * (row + 1)] for row in range(count)]
