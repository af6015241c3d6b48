"""An answer that goes on where it was, once another replica computes it again."""

from __future__ import annotations

import secrets
from dataclasses import replace

from radixlm.core.errors import EngineDeadError
from radixlm.core.misses import MissReport
from radixlm.core.request import GenerateRequest, RequestOutput

_SEED_BITS = 63


class OtherAnswerError(EngineDeadError):
    """An error: the answer that was computed again is not the one that was sent."""

    def __init__(self) -> None:
        super().__init__(
            "the replica that computed this answer is gone, and another one computes another "
            "answer; please ask again"
        )


def repeatable(request: GenerateRequest) -> GenerateRequest:
    """The same with a seed, so that each time it is computed it draws the same numbers."""
    if request.params.seed is not None:
        return request
    return replace(request, params=replace(request.params, seed=secrets.randbits(_SEED_BITS)))


class Sent:
    """The part of an answer that was sent. finished: all of it.

    first time    The | gih | lived | ... the replica dies
    again         The | gih | lived | in | a ...
                  compared, left out  sent
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._at = 0
        self._miss: MissReport | None = None
        self.finished = False

    def begin_again(self) -> None:
        """Begin again: its outputs come from the first on."""
        self._at, self._miss = 0, None

    def rest(self, output: RequestOutput) -> RequestOutput | None:
        """The new part of the next output, with the report of who computes it now. Raises
        OtherAnswerError.
        """
        self._miss = output.miss or self._miss
        left = self._rest(output)
        if left is None or self._miss is None:
            return left
        miss, self._miss = self._miss, None
        return replace(left, miss=miss)

    def _rest(self, output: RequestOutput) -> RequestOutput | None:
        old = min(len(self._tokens) - self._at, len(output.token_ids))
        if self._tokens[self._at : self._at + old] != list(output.token_ids[:old]):
            raise OtherAnswerError
        self._at += len(output.token_ids)
        if self._at < len(self._tokens) and output.finished:
            raise OtherAnswerError
        self._tokens += output.token_ids[old:]
        self.finished = output.finished
        if not old:
            return output if self._at == len(self._tokens) else None
        return _after(output, old)


def _after(output: RequestOutput, tokens: int) -> RequestOutput | None:
    """The output without its first tokens; None where nothing is left."""
    pieces = list(output.as_it_came())
    while tokens > 0:
        tokens -= len(pieces.pop(0).token_ids)
    if tokens < 0:
        raise OtherAnswerError
    if not (pieces or output.finished):
        return None
    return replace(
        output,
        text="".join(piece.text for piece in pieces),
        token_ids=tuple(token for piece in pieces for token in piece.token_ids),
        logprobs=tuple(entry for piece in pieces for entry in piece.logprobs),
        prompt_logprobs=(),
        miss=None,
        queued=None,
        pieces=tuple((len(piece.token_ids), len(piece.text)) for piece in pieces),
    )
