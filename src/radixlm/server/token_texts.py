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

    A token without text (half a character, a special one) comes with the next text. O(tokens).
    """

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, prompt: Key) -> None:
        self._raw = Detokenizer(
            tokenizer,
            skip_special_tokens=params.skip_special_tokens,
            shown=params.shown_special_ids,
            prompt_tail=prompt[-PROMPT_TAIL:].tolist(),
        )
        self._taken: list[_Token] = []  # for the next piece
        self._waiting: deque[_Token] = deque()  # the first one's text is not certain yet
        self._text = ""

    def pieces(self, output: RequestOutput) -> Iterator[Piece]:
        """What has become certain; with the last output, the rest."""
        self._text += output.text
        for place, token_id in enumerate(output.token_ids):
            logprob = output.logprobs[place] if output.logprobs else None
            self._waiting.append(_Token(token_id, len(self._raw.push(token_id).text), logprob))
        begin = 0
        while self._waiting and begin + self._waiting[0].length <= len(self._text):
            token = self._waiting.popleft()
            self._taken.append(token)
            if token.length:
                end = begin + token.length
                yield self._take(self._text[begin:end])
                begin = end
        self._text = self._text[begin:]
        if output.finished and (self._taken or self._waiting or self._text):
            self._taken += self._waiting
            yield self._take(self._text)

    def _take(self, text: str) -> Piece:
        taken, self._taken = self._taken, []
        logprobs = tuple(token.logprob for token in taken if token.logprob is not None)
        return Piece(tuple(token.id for token in taken), text, logprobs)
