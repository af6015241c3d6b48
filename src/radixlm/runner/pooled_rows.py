"""Tokens of a step whose states pooled requests want, and what is made of these."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import torch

from radixlm.core.batch import ScheduledBatch
from radixlm.core.request import Pooled
from radixlm.models.decoder import PooledRows

Places = Mapping[int, npt.NDArray[np.integer]]


def pooled_places(batch: ScheduledBatch) -> Places:
    """The tokens of pooled rows among those of the step, by place."""
    wanted: dict[int, npt.NDArray[np.integer]] = {}
    if all(row.request.pooled is Pooled.NOTHING for row in batch.rows):
        return wanted  # nearly every step
    end = 0
    for place, row in enumerate(batch.rows):
        begin, end = end, end + sum(part.n_new for part in row.parts)
        match row.request.pooled:
            case Pooled.LAST | Pooled.SCORES if row.samples:
                wanted[place] = np.arange(begin + row.n_new - 1, begin + row.n_new)
            case Pooled.FIRST if row.start == 0:
                wanted[place] = np.arange(begin, begin + 1)
            case Pooled.MEAN:
                wanted[place] = np.arange(begin, end)
    return wanted


def summed(places: Places, pooled: PooledRows | None) -> dict[int, npt.NDArray[np.float32]]:
    """The sum of the states of pooled rows, by place."""
    if pooled is None or pooled.states is None:
        return {}
    parts = pooled.states.float().split([its.size for its in places.values()])
    states = torch.stack([its.sum(0) for its in parts]).cpu().numpy()
    return dict(zip(places, states, strict=True))
