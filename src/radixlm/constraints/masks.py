"""Which tokens may come next, for many answers at a time, beside whatever else is computed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import numpy.typing as npt
from llguidance import LLExecutor
from llguidance.numpy import fill_next_token_bitmask_par

from radixlm.constraints.matcher import Matcher

Bits = npt.NDArray[np.int32]


class MaskFiller:
    """Fills masks on a thread of its own, which hands them to llguidance's: none of it holds the
    interpreter. Nothing is started before the first mask is wanted.
    """

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._words = vocab_size // 32 + 1  # a Table has one id more
        self._thread: ThreadPoolExecutor | None = None
        self._executor: LLExecutor | None = None

    def start(self, matchers: Sequence[Matcher]) -> Future[Bits]:
        """(len(matchers), vocab // 32 + 1) int32: bit t % 32 of word t // 32 allows token t.

        A matcher that allows nothing, or whose limits are reached, says so when it is asked for
        its error; its row allows everything. The matchers must be left alone until it is done.
        """
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, "radixlm-masks")
        return self._thread.submit(self._fill, list(matchers))

    def _fill(self, matchers: Sequence[Matcher]) -> Bits:
        if self._executor is None:
            self._executor = LLExecutor()
        bits = np.zeros((len(matchers), self._words), dtype=np.int32)
        pairs = [(matcher.state, row) for row, matcher in enumerate(matchers)]
        fill_next_token_bitmask_par(self._executor, pairs, bits)
        bits[:, -1] &= (1 << self._vocab_size % 32) - 1
        bits[~bits.any(axis=1)] = -1
        return bits
