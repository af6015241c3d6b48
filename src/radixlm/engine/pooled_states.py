"""Results of pooled requests, put together from those of their steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.core.request import Pooled, RequestOutput
from radixlm.formats.pooling import DenseLayer


class PooledStates:
    """scorer: (labels, width), makes scores of a state. dense: what embeddings go through.

    By request under way: what is wanted of it, and the sum of its states so far; a request that is
    not in it has computed none.
    """

    def __init__(
        self,
        scorer: npt.NDArray[np.float32] | None = None,
        dense: Sequence[DenseLayer] = (),
    ) -> None:
        self._scorer, self._dense = scorer, dense
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
        if pooled is Pooled.SCORES:
            made = made if self._scorer is None else self._scorer @ made
        else:
            for layer in self._dense:
                made = layer(made)
        return replace(output, hidden=made) if output.token_ids else output

    def drop(self, request_id: str) -> None:
        """Forget a request."""
        self._sums.pop(request_id, None)
