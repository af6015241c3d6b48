"""Requests' answers as they grow: their text, their grammars, where they end, what is pinned."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import replace
from time import thread_time

from radixlm.cache import RadixCache
from radixlm.core.batch import NewTokens, ScheduledBatch, StepResult, TokenMasks
from radixlm.core.errors import PinError
from radixlm.core.request import Breakpoint, FinishReason, GenerateRequest, RequestOutput
from radixlm.scheduler.state import RequestState
from radixlm.structured_output import MaskFiller, Matcher
from radixlm.text.detokenizer import PROMPT_TAIL, Detokenizer, NoText
from radixlm.text.tokenizer import Tokenizer

_logger = logging.getLogger("radixlm.engine")

# Of what is forced, at most this many tokens are taken at a time.
MAX_FORCED = 128
# What a step may take, in seconds, for grammars that take long, and what is long for one answer.
BUDGET = 0.02
LONG = 0.002


class AnswerState:
    """One request's answer: its text, and where in its grammar it is.

    After a sampled token come those that the grammar forces (jump-forward): the model is not asked
    for them, and they are computed in one part with the next token's logits. They are cut as the
    tokenizer would have cut the text, as far as what follows can not change that; so the cache
    finds them again when the answer comes back as a prompt.

    jump_forward: without it, or with log-probabilities (forced tokens have none), all are sampled.
    """

    __slots__ = ("_jumps", "_room", "matcher", "request", "text")

    def __init__(
        self, request: GenerateRequest, tokenizer: Tokenizer | None, *, jump_forward: bool
    ) -> None:
        params = request.params
        self.request = request
        self.text: Detokenizer | NoText = NoText()
        if tokenizer is not None:
            self.text = Detokenizer(
                tokenizer,
                stop=params.stop,
                thoughts=params.thoughts,
                min_tokens=params.min_tokens,
                skip_special_tokens=params.skip_special_tokens,
                shown=params.shown_special_ids,
                prompt_tail=request.key[-PROMPT_TAIL:].tolist(),
            )
        self.matcher: Matcher | None = (
            None if request.constraint is None else request.constraint.matcher()
        )
        self._room = request.max_tokens
        self._jumps = jump_forward and params.logprobs is None

    def take(self, token: int, known: tuple[int, ...] = ()) -> NewTokens:
        """Go on by a sampled token and what is forced after it, to the first end there is. known:
        what follows it, where there is no grammar.
        """
        if self.matcher is None:
            return self._push([token, *known[: self._room - 1]])
        begun = thread_time()
        try:
            return self._follow(self.matcher, token)
        except BaseException as error:  # llguidance's: what it panics with is no Exception
            _logger.exception("a grammar's matcher broke")
            return _failed(f"{type(error).__name__}: {error}")
        finally:
            self.matcher.weight.step = thread_time() - begun

    def _follow(self, matcher: Matcher, token: int) -> NewTokens:
        if matcher.error is not None or not matcher.accept([token]):
            return _failed(matcher.error or f"token {token} is not allowed")
        new = self._push([token])
        if not self._ended(new) and not matcher.complete and self._jumps:
            forced = matcher.forced()[: min(self._room, MAX_FORCED)]
            if forced and matcher.accept(forced):
                more = self._push(forced)
                new = more._replace(tokens=new.tokens + more.tokens, text=new.text + more.text)
        return new._replace(complete=matcher.complete)

    def _push(self, tokens: list[int]) -> NewTokens:
        """Make text of them, up to a stop token or string."""
        text, stop = "", None
        for place, token in enumerate(tokens, 1):
            self._room -= 1
            if token not in self.request.stop_token_ids:
                piece = self.text.push(token)
                text, stop = text + piece.text, piece.stop
                if stop is None:
                    continue
            return NewTokens(tuple(tokens[:place]), text, stop)
        return NewTokens(tuple(tokens), text)

    def _ended(self, new: NewTokens) -> bool:
        stopped = new.tokens[-1] in self.request.stop_token_ids
        return stopped or new.stop is not None or self._room == 0


def _failed(reason: str) -> NewTokens:
    return NewTokens((), error=f"the grammar can not be followed any further: {reason}")


class OutputProcessor:
    """The engine's knowledge of the requests under way besides their tokens. to_pin: requests with
    breakpoints whose prompt is not computed yet.
    """

    def __init__(
        self,
        tokenizer: Tokenizer | None,
        cache: RadixCache,
        masks: MaskFiller | None,
        *,
        jump_forward: bool,
    ) -> None:
        self._tokenizer = tokenizer
        self._cache = cache
        self._masks = masks
        self._jump_forward = jump_forward
        self.answers: dict[str, AnswerState] = {}
        self.to_pin: dict[str, GenerateRequest] = {}

    def add(self, request: GenerateRequest) -> None:
        """A request is queued."""
        self.answers[request.request_id] = AnswerState(
            request, self._tokenizer, jump_forward=self._jump_forward
        )
        if request.breakpoints:
            self.to_pin[request.request_id] = request

    def held(self, running: Iterable[RequestState]) -> frozenset[str]:
        """The requests whose turn it is not. Requests whose grammars take long wait for each other,
        so that no other request waits for all of them: a step goes on with those that moved longest
        ago, as many as the budget has room for by what their grammars took of late, but one at
        least.
        """
        slow = []
        for state in running:
            name = state.request.request_id
            matcher = self.answers[name].matcher
            if matcher is not None and state.decodes and matcher.weight.seconds >= LONG:
                slow.append((state.moved, state.arrival, name, matcher.weight.seconds))
        held = []
        left = BUDGET
        for _, _, name, seconds in sorted(slow):
            if left <= 0:
                held.append(name)
            left -= seconds
        return frozenset(held)

    def with_masks(self, batch: ScheduledBatch) -> ScheduledBatch:
        """The batch, with masks under way for the rows that sample and follow a grammar."""
        matchers = {
            place: matcher
            for place, row in enumerate(batch.rows)
            if row.samples and (matcher := self.answers[row.request.request_id].matcher)
        }
        if self._masks is None or not matchers:
            return batch
        bits = self._masks.start(list(matchers.values()))
        return replace(batch, masks=TokenMasks(tuple(matchers), bits))

    def take(self, batch: ScheduledBatch, result: StepResult) -> dict[str, NewTokens]:
        """Take the sampled tokens; what they have become, by request.

        What is forced is taken at once, however long others took: as tokens that were sampled later
        it would be cut differently, and answers would depend on the clock.
        """
        if batch.masks is not None:
            batch.masks.bits.result()  # a matcher is left alone until its mask is made
        return {
            row.request.request_id: self.answers[row.request.request_id].take(
                drawn[0], drawn[1:] + result.known.get(place, ())
            )
            for place, row in enumerate(batch.rows)
            if (drawn := result.drawn(place))
        }

    def complete(self, output: RequestOutput) -> RequestOutput:
        """Add the breakpoints that were pinned, with the first tokens; at last, text held back."""
        if output.token_ids and output.request_id in self.to_pin:
            output = replace(output, kept=self._pin(self.to_pin.pop(output.request_id)))
        if output.finish_reason is None:
            return output
        self.to_pin.pop(output.request_id, None)
        last = self.answers.pop(output.request_id).text.flush()
        reason, matched = output.finish_reason, output.matched_stop
        if last.stop is not None and reason in (FinishReason.STOP, FinishReason.LENGTH):
            reason, matched = FinishReason.STOP, last.stop
        text = output.text + last.text
        return replace(output, text=text, finish_reason=reason, matched_stop=matched)

    def _pin(self, request: GenerateRequest) -> tuple[Breakpoint, ...]:
        """Pin its breakpoints where there is room; the longest last, so that it is the youngest."""
        pinned = []
        for wish in sorted(request.breakpoints):
            prefix = request.key[: wish.tokens]
            try:
                pin = self._cache.keep(prefix, request.namespace, wish.ttl, request.tenant)
            except PinError:
                continue
            pinned.append(Breakpoint(pin.tokens, wish.ttl))
        return tuple(pinned)
