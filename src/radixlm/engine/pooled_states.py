"""Results of pooled requests, put together from those of their steps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.core.request import Pooled, RequestOutput


class PooledStates:
    """scorer: (labels, width), makes scores of a state. By request under way: what is wanted of it,
    and the sum of its states so far; a request that is not in it has computed none.
    """

    def __init__(self, scorer: npt.NDArray[np.float32] | None = None) -> None:
        self._scorer = scorer
        self._sums: dict[str, tuple[Pooled, npt.NDArray[np.float32]]] = {}

    def take(self, batch: ScheduledBatch, result: StepResult) -> None:
        """Add the states of a step. A request that begins again is summed anew."""
        for place, states in result.hidden.items():
            row = batch.rows[place]
            name, pooled = row.request.request_id, row.request.pooled
            known = self._sums.get(name) if row.start and pooled is Pooled.MEAN else None
            self._sums[name] = pooled, states if known is None else known[1] + states

    def complete(self, output: RequestOutput) -> RequestOutput:
        """The output, with what its request asked for where that is whole."""
        if output.request_id not in self._sums or not (output.token_ids or output.finished):
            return output
        pooled, made = self._sums.pop(output.request_id)
        if pooled is Pooled.MEAN:
            made = (made / np.float32(output.prompt_tokens)).astype(np.float32)
        elif pooled is Pooled.SCORES and self._scorer is not None:
            made = self._scorer @ made
        return replace(output, hidden=made) if output.token_ids else output

    def drop(self, request_id: str) -> None:
        """Forget a request."""
        self._sums.pop(request_id, None)
