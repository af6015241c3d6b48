"""The tokens of answers, so that a conversation goes on from what was computed.

Text sampled token by token may be tokenized in another way, and then the cache has nothing after
the first difference. So the tokens are remembered, and a later prompt takes them again where it
has the same text after the same beginning:

    text      <|user|>a<|assistant|>   Hi<|end|>   <|user|>b<|assistant|>
              '-- a prompt's own --''- its answer -''------ encoded -----'

The messages say where such a beginning may end: for each answer of the assistant's, the digest of
the messages before it is looked up. The template decides whether the text is the same, so the text
is compared.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from threading import Lock
from typing import Any, Final, NamedTuple

import numpy as np

from radixlm.core.keys import Key
from radixlm.text.detokenizer import PROMPT_TAIL
from radixlm.text.fitting import one_text
from radixlm.text.tokenizer import Tokenizer, new_mark

# Different answers to the same prompt, as those who draw many and go on from each have them.
MOST_ANSWERS: Final = 64
# What an answer takes besides its tokens and text, in tokens.
_OVERHEAD: Final = 32
_NO_TOKENS: Final = np.zeros(0, dtype=np.int32)


class Span(NamedTuple):
    """Characters of a text from `start` to before `stop`, and their tokens."""

    start: int
    stop: int
    tokens: Key


class Asked(NamedTuple):
    """A prompt that is going to be answered.

    source: a digest of whose it is and what it was rendered from. chars, digest: of its text.
    """

    source: bytes
    chars: int
    digest: bytes


class Recalled(NamedTuple):
    """The known tokens of a prompt's text, in order, and how its answer can be remembered."""

    spans: Sequence[Span]
    asked: Asked


@dataclass(slots=True, eq=False)
class _Answers:
    """The answers to one prompt: their tokens by their texts, the latest one last."""

    asked: Asked
    tokens: dict[str, Key] = field(default_factory=dict)

    @property
    def cost(self) -> int:
        return sum(tokens.size + _OVERHEAD for tokens in self.tokens.values())


class AnswerMemory:
    """Answers by the prompts that they followed, each known only to whom it was given.

    Safe to use from several threads. What was not asked for the longest time makes room.

    room: in tokens. As many as the KV pool has are enough: an answer whose tokens are cached no
    more is not worth remembering.
    mark: for `ChatTemplate.plain_text`, the same for all prompts, so that their texts compare.
    """

    def __init__(self, tokenizer: Tokenizer, room: int) -> None:
        self.mark = new_mark()
        self._tokenizer = tokenizer
        self._room = room
        self._held = 0
        self._prompts: OrderedDict[bytes, _Answers] = OrderedDict()
        self._lock = Lock()

    def recall(
        self, text: str, whose: Sequence[str], messages: Sequence[Mapping[str, Any]], *given: Any
    ) -> Recalled:
        """Recall what is known of a prompt. O(length of the messages and of the text).

        whose: only answers to them are looked at. messages, given: what the template was given.
        """
        source = blake2b(json.dumps([*whose, given]).encode(), digest_size=16)
        hashed = blake2b(digest_size=16)
        spans: list[Span] = []
        done = 0
        for message in messages:
            if message["role"] == "assistant" and (known := self._find(source.digest())):
                asked = known.asked
                if asked.chars >= done:
                    hashed.update(_bytes(text[done : asked.chars]))
                    done = asked.chars
                    follows = not spans or spans[-1].stop <= done
                    splits = follows and not self._tokenizer.within_added(text, done)
                    if splits and hashed.digest() == asked.digest:
                        spans.append(self._span(text, known))
            plain = {**message, "content": one_text(message["content"])}
            source.update(json.dumps(plain).encode())
        hashed.update(_bytes(text[done:]))
        return Recalled(spans, Asked(source.digest(), len(text), hashed.digest()))

    def remember(
        self, asked: Asked, prompt: Key, sampled: Sequence[int], stop: str | None = None
    ) -> None:
        """Remember what was sampled after a prompt. O(length of the answer).

        stop: the stop string that ended it, which the client does not get: of the answer those
        tokens are remembered that end before it.

        An answer that spells an added token with others is not: where a template writes that
        token, a prompt would get the others. Of answers with the same text the first one stays,
        so nobody changes what others go on from.
        """
        answer = sampled if stop is None else self._before(stop, sampled)
        if not answer or self._tokenizer.spells_added(answer):
            return
        tail = prompt[-PROMPT_TAIL:].tolist()  # special tokens are spelled out
        before, both = (
            self._tokenizer.decode(tokens, skip_special_tokens=False)
            for tokens in (tail, [*tail, *answer])
        )
        text = both[len(before) :]
        with self._lock:
            known = self._prompts.pop(asked.source, None)
            if known is not None:
                self._held -= known.cost
            if known is None or known.asked != asked:
                known = _Answers(asked)
            first = known.tokens.pop(text, None)
            known.tokens[text] = np.array(answer, dtype=np.int32) if first is None else first
            if len(known.tokens) > MOST_ANSWERS:
                del known.tokens[next(iter(known.tokens))]
            self._prompts[asked.source] = known
            self._held += known.cost
            while self._held > self._room:
                _, oldest = self._prompts.popitem(last=False)
                self._held -= oldest.cost

    def _before(self, stop: str, sampled: Sequence[int]) -> Sequence[int]:
        """The tokens that end before the stop string, which is complete with the last one; none
        where special tokens stand within it, which are no text of the answer.
        """
        text, before = (
            self._tokenizer.decode(tokens, skip_special_tokens=False)
            for tokens in (sampled, sampled[:-1])
        )
        settled = len(before.removesuffix("\ufffd"))  # half a character may become another one
        start = text.find(stop, max(settled - len(stop) + 1, 0))
        if start < 0:
            return ()
        kept, beyond = len(sampled), len(text[start:].encode())
        while kept and beyond > 0:
            kept -= 1
            beyond -= len(self._tokenizer.token_bytes(sampled[kept]))
        return sampled[:kept]

    def _span(self, text: str, known: _Answers) -> Span:
        """The answer that the text has; where it has none, that no token reaches out of the prompt.

        An added token that the text spells across the answer's end was not in the answer.
        """
        start, longest, found = known.asked.chars, 0, _NO_TOKENS
        for answer, tokens in list(known.tokens.items()):
            there = len(answer) > longest and text.startswith(answer, start)
            if there and not self._tokenizer.within_added(text, start + len(answer)):
                longest, found = len(answer), tokens
        return Span(start, start + longest, found)

    def _find(self, source: bytes) -> _Answers | None:
        with self._lock:
            if source in self._prompts:
                self._prompts.move_to_end(source)
            return self._prompts.get(source)


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
