"""One request's answer as it grows: its text, its grammar, where it ends."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from time import thread_time
from typing import NamedTuple

from radixlm.core.batch import ScheduledBatch, TokenMasks
from radixlm.core.request import GenerateRequest
from radixlm.scheduler import Taken
from radixlm.scheduler.state import RequestState
from radixlm.structured_output import MaskFiller, Matcher
from radixlm.text.detokenizer import PROMPT_TAIL, Detokenizer, Piece
from radixlm.text.tokenizer import Tokenizer

_logger = logging.getLogger("radixlm.engine")

# Of what is forced, so many tokens are taken at a time.
MAX_FORCED = 128


class Grown(NamedTuple):
    """What a sampled token has become, and the text that is certain by it."""

    taken: Taken
    text: str


class Continuation:
    """What the engine knows of a request besides its tokens.

    After a sampled token come those that the grammar forces (jump-forward): the model is not asked
    for them, and they are computed in one part with the next token's logits. They are cut into
    tokens as the tokenizer would have cut the text, as far as what follows can not change that; so
    the cache finds them again when the answer comes back as a prompt.

    jump_forward: without it, every token is sampled. It is so too where log-probabilities are
    asked for: of tokens that the model was not asked for there are none.
    """

    __slots__ = ("_jumps", "_request", "_room", "_text", "matcher")

    def __init__(
        self, request: GenerateRequest, tokenizer: Tokenizer, *, jump_forward: bool
    ) -> None:
        params = request.params
        self._request = request
        self._room = request.max_tokens
        self._text = Detokenizer(
            tokenizer,
            stop=params.stop,
            min_tokens=params.min_tokens,
            skip_special_tokens=params.skip_special_tokens,
            shown=params.shown_special_ids,
            prompt_tail=request.key[-PROMPT_TAIL:].tolist(),
        )
        self._jumps = jump_forward and params.logprobs is None
        self.matcher: Matcher | None = (
            None if request.constraint is None else request.constraint.matcher()
        )

    def take(self, token: int) -> Grown:
        """Go on by a sampled token and what is forced after it, to the first end there is."""
        if self.matcher is None:
            return self._push([token])
        begun = thread_time()
        try:
            return self._follow(self.matcher, token)
        except BaseException as error:  # llguidance's: what it panics with is no Exception
            _logger.exception("a grammar's matcher broke")
            return _failed(f"{type(error).__name__}: {error}")
        finally:
            self.matcher.weight.step = thread_time() - begun

    def _follow(self, matcher: Matcher, token: int) -> Grown:
        if matcher.error is None and matcher.accept([token]):
            grown = self._push([token])
            if self._ended(grown.taken) or matcher.complete or not self._jumps:
                return self._completed(grown)
            forced = matcher.forced()[: min(self._room, MAX_FORCED)]
            if forced and matcher.accept(forced):
                more = self._push(forced)
                tokens = grown.taken.tokens + more.taken.tokens
                grown = Grown(more.taken._replace(tokens=tokens), grown.text + more.text)
            return self._completed(grown)
        reason = matcher.error or f"token {token} is not allowed"
        return _failed(reason)

    def flush(self) -> Piece:
        """The text that was held back, at the end, and the stop string that it completes."""
        return self._text.flush()

    def _push(self, tokens: list[int]) -> Grown:
        """Make text of them, up to a stop token or string."""
        texts: list[str] = []
        for place, token in enumerate(tokens):
            self._room -= 1
            if token in self._request.stop_token_ids:
                return Grown(Taken(tuple(tokens[: place + 1])), "".join(texts))
            piece = self._text.push(token)
            texts.append(piece.text)
            if piece.stop is not None:
                return Grown(Taken(tuple(tokens[: place + 1]), piece.stop), "".join(texts))
        return Grown(Taken(tuple(tokens)), "".join(texts))

    def _ended(self, taken: Taken) -> bool:
        stopped = taken.tokens[-1] in self._request.stop_token_ids
        return stopped or taken.stop is not None or self._room == 0

    def _completed(self, grown: Grown) -> Grown:
        complete = self.matcher is not None and self.matcher.complete
        return grown._replace(taken=grown.taken._replace(complete=complete))


def _failed(reason: str) -> Grown:
    return Grown(Taken((), error=f"the grammar can not be followed any further: {reason}"), "")


# What a step may take, in seconds, for grammars that take long, and what is long for one answer.
BUDGET = 0.02
LONG = 0.002


class Following:
    """Those who follow a grammar that takes long wait for each other, so that nobody else waits for
    all of them. A step goes on with those that moved longest ago, as many as the budget has room
    for by what their grammars took of late, but one at least.
    """

    def __init__(self, masks: MaskFiller | None, answers: Mapping[str, Continuation]) -> None:
        self._masks = masks
        self._answers = answers

    def held(self, running: Iterable[RequestState]) -> frozenset[str]:
        """Whose turn it is not."""
        slow = []
        for state in running:
            name = state.request.request_id
            seconds = self._seconds(self._answers[name].matcher) if state.decodes else 0.0
            if seconds >= LONG:
                slow.append((state.moved, state.arrival, name, seconds))
        held = []
        left = BUDGET
        for _, _, name, seconds in sorted(slow):
            if left <= 0:
                held.append(name)
            left -= seconds
        return frozenset(held)

    def with_masks(self, batch: ScheduledBatch) -> ScheduledBatch:
        """The same, with masks under way for the rows that sample and follow a grammar."""
        matchers = {
            place: matcher
            for place, row in enumerate(batch.rows)
            if row.samples and (matcher := self._answers[row.request.request_id].matcher)
        }
        if self._masks is None or not matchers:
            return batch
        bits = self._masks.start(list(matchers.values()))
        return replace(batch, masks=TokenMasks(tuple(matchers), bits))

    @staticmethod
    def _seconds(matcher: Matcher | None) -> float:
        return 0.0 if matcher is None else matcher.weight.seconds
