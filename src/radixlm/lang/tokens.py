"""A transcript that is token ids, so that no text is tokenized twice.

Texts that stand together are tokenized as one, when the model is asked next. What the model said
stays the tokens it said. So a token may reach from one text of the program into the next, but never
across a seam between a text and an answer:

    s += "Name" + ":"    gen("name")    "\\n"   "Age:"
    '--- one text ---'  |-- tokens --|  '- one text -'      | seam

Where the model was asked meanwhile (a fork, a select), the last token of the text before is taken
back and tokenized together with what follows: "do" and "g" become "dog".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import numpy as np

from radixlm.core.keys import Key
from radixlm.lang.roles import Roles
from radixlm.lang.transcript import Answer, Transcript
from radixlm.text.detokenizer import PROMPT_TAIL, Detokenizer
from radixlm.text.tokenizer import Tokenizer


class TokenTranscript(Transcript):
    """_pending: text that is not tokenized yet. _open: the last token is of a text."""

    def __init__(self, roles: Roles, tokenizer: Tokenizer) -> None:
        super().__init__(roles)
        self._tokenizer = tokenizer
        self._ids: list[int] = []
        self._pending = ""
        self._open = False

    def write(self, text: str) -> None:
        super().write(text)
        self._pending += text

    def take(self, answer: Answer) -> None:
        super().take(answer)
        kept, length = len(answer.token_ids), len(answer.text)
        if answer.cut:
            kept, length = self._within(answer.token_ids, length)
        self._settle()
        self._ids += answer.token_ids[:kept]
        self._open = False
        self._pending = answer.text[length:]

    def copy(self) -> Self:
        self._settle()
        twin = super().copy()
        twin._ids = list(self._ids)
        return twin

    def key(self) -> Key:
        """(n,) int32 ids of everything so far."""
        self._settle()
        return np.array(self._ids, dtype=np.int32)

    def _settle(self) -> None:
        text, self._pending = self._pending, ""
        if not text:
            return
        if self._ids:
            text = self._taken_back() + text
            self._ids += self._tokenizer.encode_behind(text).tolist()
        else:
            self._ids = self._tokenizer.encode(text).tolist()
        self._open = True

    def _taken_back(self) -> str:
        """The text of the last token, which is removed; nothing where it has to stay."""
        token = self._ids[-1]
        if not self._open or len(self._ids) == 1 or token in self._tokenizer.special_ids:
            return ""
        text = self._tokenizer.token_text(token)
        if "\ufffd" in text or self._tokenizer.encode_behind(text).tolist() != [token]:
            return ""
        self._ids.pop()
        return text

    def _within(self, tokens: Sequence[int], length: int) -> tuple[int, int]:
        """How many of the tokens are within `length` characters, and how many characters they are.

        A stop may end an answer in the middle of a token: the rest of the text is text then.
        """
        decoded = Detokenizer(self._tokenizer, prompt_tail=self._ids[-PROMPT_TAIL:])
        kept = kept_length = total = 0
        for place, token in enumerate(tokens, start=1):
            total += len(decoded.push(token).text)
            if total > length:
                return kept, kept_length
            if total > kept_length:
                kept, kept_length = place, total
        return len(tokens), length
