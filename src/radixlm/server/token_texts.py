"""An answer's text cut where its tokens end: what is told of tokens comes with their text."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from radixlm.core.keys import Key
from radixlm.core.request import Piece, RequestOutput, TokenLogprob
from radixlm.core.sampling import SamplingParams
from radixlm.text.detokenizer import PROMPT_TAIL, Detokenizer
from radixlm.text.tokenizer import Tokenizer


class _Token(NamedTuple):
    """length: characters that are certain with it, those of tokens before it left out."""

    id: int
    length: int
    logprob: TokenLogprob | None


class TokenTexts:
    """Reads one answer's outputs. Pieces come when the text of all their tokens is certain:

        tokens   "Once"  " wor"  "k"        stop: "world"
        outputs  "Once"  " "     "work"
        pieces   "Once"          " work"

    A token without text (half a character, a special one) comes with the next text.
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, prompt: Key) -> None:
        self._raw = Detokenizer(
            tokenizer,
            skip_special_tokens=params.skip_special_tokens,
            shown=params.shown_special_ids,
            prompt_tail=prompt[-PROMPT_TAIL:].tolist(),
        )
        self._waiting: deque[_Token] = deque()
        self._text = ""

    def pieces(self, output: RequestOutput) -> Iterator[Piece]:
        """What has become certain; with the last output, the rest."""
        self._text += output.text
        for place, token in enumerate(output.token_ids):
            logprob = output.logprobs[place] if output.logprobs else None
            self._waiting.append(_Token(token, len(self._raw.push(token).text), logprob))
        count = length = 0
        for waiting in [*self._waiting]:
            count, length = count + 1, length + waiting.length
            if length > len(self._text):
                break
            if waiting.length:
                yield self._take(count, length)
                count = length = 0
        if output.finished and (self._waiting or self._text):
            yield self._take(len(self._waiting), len(self._text))

    def _take(self, count: int, length: int) -> Piece:
        taken = [self._waiting.popleft() for _ in range(count)]
        text, self._text = self._text[:length], self._text[length:]
        logprobs = tuple(token.logprob for token in taken if token.logprob is not None)
        return Piece(tuple(token.id for token in taken), text, logprobs)
