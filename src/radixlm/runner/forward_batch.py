"""A ScheduledBatch as the tensors that a model's forward takes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixlm.core.batch import ScheduledBatch, ScheduledRow


@dataclass(frozen=True, slots=True)
class PromptLogits:
    """Logits of one row's prompt tokens: rows [first, first + len(targets)) of all logits.

    row: the row's place in the batch.
    targets: the prompt tokens that these logits predict, none before the first that is wanted.
    """

    row: int
    first: int
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ForwardBatch:
    """One step's tokens, all rows one after the other, on the device.

    token_ids, positions, slots: (tokens,) int64.
    logit_rows: (n,) int64, tokens whose logits are wanted: first the last token of each row in
        `sampling`, in that order, then those of `prompts`.
    sampling: places in the batch of the rows that sample.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    logit_rows: Tensor
    sampling: tuple[int, ...]
    prompts: tuple[PromptLogits, ...]

    @classmethod
    def from_scheduled(cls, batch: ScheduledBatch, device: torch.device) -> ForwardBatch:
        """Lay the batch out; one copy to the device per tensor."""
        rows = batch.rows
        ends = np.cumsum([row.n_new for row in rows], dtype=np.int64)
        sampling = tuple(i for i, row in enumerate(rows) if row.samples)
        wanted = [ends[list(sampling)] - 1]
        prompts = []
        count = len(sampling)
        for i, row in enumerate(rows):
            targets = _prompt_targets(row)
            if targets:
                prompts.append(PromptLogits(i, count, targets))
                # Row by row of the logits, the first one predicts the first target.
                first = ends[i] - row.n_new + _first_target(row) - 1 - row.start
                wanted.append(np.arange(first, first + len(targets), dtype=np.int64))
                count += len(targets)
        return cls(
            token_ids=_joined((row.tokens[row.start :] for row in rows), device),
            positions=_joined((np.arange(row.start, row.stop) for row in rows), device),
            slots=_joined((row.new_slots for row in rows), device),
            logit_rows=_joined(wanted, device),
            sampling=sampling,
            prompts=tuple(prompts),
        )


def _prompt_targets(row: ScheduledRow) -> tuple[int, ...]:
    """Prompt tokens that follow this step's and whose log-probabilities are wanted; the last may
    lie one beyond it, in the next chunk.
    """
    if row.request.params.prompt_logprobs is None:
        return ()
    stop = min(row.stop + 1, row.prompt_length)
    return tuple(row.request.key[_first_target(row) : stop].tolist())


def _first_target(row: ScheduledRow) -> int:
    return max(row.start + 1, row.request.params.first_prompt_logprob)


def _joined(parts: Iterable[npt.NDArray[np.integer]], device: torch.device) -> Tensor:
    return torch.from_numpy(np.concatenate(list(parts)).astype(np.int64)).to(device)
