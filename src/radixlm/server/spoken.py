"""A conversation as the text that the template wrote, and the tokens that were computed for it.

Text sampled token by token may be tokenized in another way, and then the cache has nothing behind
the first difference. So the tokens are kept, and taken again where the template writes the same:

    text    <|user|>a<|assistant|> Hi<|end|>  <|user|>b<|assistant|>  Oh
            '------- cut --------' '- cut -'  '------- cut -------'  cut
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from radixlm.core.keys import Key
from radixlm.text.detokenizer import PROMPT_TAIL
from radixlm.text.tokenizer import Tokenizer


class Cut(NamedTuple):
    """A place in a conversation: so many characters, which are so many tokens."""

    chars: int
    tokens: int


NOTHING = Cut(0, 0)


class Spoken(NamedTuple):
    """mark: stands in `text` where no token may reach across; see `as_plain_text`.

    cuts: the ends of prompts and of answers, in order.
    """

    text: str
    mark: str
    key: Key
    cuts: Sequence[Cut]

    def shared_with(self, text: str) -> Cut:
        """The last cut up to which `text` is the same. O(length) where it is one of the last."""
        for cut in reversed(self.cuts):
            if text.startswith(self.text[: cut.chars]):
                return cut
        return NOTHING


class Said(NamedTuple):
    """What one turn adds to a conversation.

    kept: how much of what was there before it keeps. asked: how much of its own text and tokens
    is the prompt; the rest is the answer.
    """

    kept: Cut
    asked: Cut
    text: str
    mark: str
    key: Key


def spoken(turns: Sequence[Said]) -> Spoken:
    """All turns of a conversation together; one at least, and all with the same mark."""
    text, key, cuts = "", np.zeros(0, dtype=np.int32), [NOTHING]
    for said in turns:
        kept, asked = said.kept, said.asked
        text = text[: kept.chars] + said.text
        key = np.concatenate([key[: kept.tokens], said.key])
        ends = [
            Cut(kept.chars + asked.chars, kept.tokens + asked.tokens),
            Cut(len(text), key.size),
        ]
        cuts = [cut for cut in cuts if cut <= kept] + ends
    return Spoken(text, turns[-1].mark, key, cuts)


def spelled_behind(tokenizer: Tokenizer, key: Key, tokens: Sequence[int]) -> str:
    """The text that `tokens` add to a prompt, special tokens spelled out."""
    tail = key[-PROMPT_TAIL:].tolist()
    before = tokenizer.decode(tail, skip_special_tokens=False)
    return tokenizer.decode([*tail, *tokens], skip_special_tokens=False)[len(before) :]
