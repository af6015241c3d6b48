"""Drafts from a text that the client predicts: OpenAI's `prediction`."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

from radixlm.core.keys import Key
from radixlm.drafts.draft import Draft
from radixlm.drafts.token_log import REACH, TOKEN_BYTES

SOURCE = "prediction"
# An answer that has left its prediction is back where some of its last tokens stand: how many, and
# how far from where it left. One token agrees by chance, but hardly so soon.
_BACK = ((8, 1 << 30), (4, 512), (2, 64), (1, 8))
# Tokens that agree when an answer is surely in its prediction.
_SURE = 4


class PredictedText:
    """Proposes a prediction from its beginning and, after a difference, from where the answer is
    back in it. One request's.

        predicted   a b c d e f g h
        answer      a b x d | e f g h           c became x; at d it is back

    prompt_size: tokens of the request's prompt.
    """

    def __init__(self, predicted: Key, prompt_size: int) -> None:
        self._predicted = predicted.tobytes()
        self._prompt_size = self._seen = prompt_size
        # Bytes of the prediction that the answer has passed, None while it is elsewhere; and where
        # it was last for sure.
        self._at: int | None = 0
        self._left = 0
        self._agreed = 0

    def propose(self, _namespace: Hashable, tokens: Sequence[int], most: int) -> Draft | None:
        """See DraftSource. O(new tokens) while the answer follows, else O(prediction)."""
        for token in np.asarray(tokens[self._seen :], dtype=np.int32):
            self._pass_by(token.tobytes())
        self._seen = len(tokens)
        if self._at is None:
            self._come_back(tokens)
        if self._at is None:
            return None
        ahead = self._predicted[self._at : self._at + most * TOKEN_BYTES]
        draft = tuple(np.frombuffer(ahead, dtype=np.int32).tolist())
        return Draft(draft, SOURCE, min(self._agreed, REACH)) if draft else None

    def _pass_by(self, token: bytes) -> None:
        if self._at is None:
            return
        if self._predicted.startswith(token, self._at):
            self._at += TOKEN_BYTES
            self._agreed += 1
            if self._agreed >= _SURE:
                self._left = self._at
        else:
            self._at = None

    def _come_back(self, tokens: Sequence[int]) -> None:
        output = np.asarray(tokens[max(len(tokens) - 8, self._prompt_size) :], dtype=np.int32)
        for size, far in _BACK:
            if output.size < size:
                continue
            wanted, stop = output[-size:].tobytes(), self._left + far * TOKEN_BYTES
            at = _aligned(self._predicted, wanted, self._left, stop)
            if at < 0 and size == _BACK[0][0]:
                at = _aligned(self._predicted, wanted, 0, self._left)
            if at >= 0:
                self._at, self._agreed = at + len(wanted), size
                return


def _aligned(text: bytes, wanted: bytes, start: int, stop: int) -> int:
    """Find where tokens stand first in a text of tokens, in bytes, or -1. Whatever the text is, it
    takes as long: bytes of other tokens may agree everywhere.
    """
    tokens = np.frombuffer(text, dtype=np.int32)[start // TOKEN_BYTES : stop // TOKEN_BYTES]
    its = np.frombuffer(wanted, dtype=np.int32)
    found = np.ones(max(tokens.size - its.size + 1, 0), dtype=bool)
    for place, token in enumerate(its):
        found &= tokens[place : place + found.size] == token
    return start + int(found.argmax()) * TOKEN_BYTES if found.any() else -1
