"""Requests' answers as they grow: their text, their grammars, where they end, what is pinned."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from time import thread_time

from radixlm.cache import RadixCache
from radixlm.core.batch import NewTokens, ScheduledBatch, ScheduledRow, StepResult, TokenMasks
from radixlm.core.errors import PinError
from radixlm.core.request import Breakpoint, FinishReason, GenerateRequest, RequestOutput
from radixlm.scheduler.state import RequestState
from radixlm.structured_output import MaskFiller, Matcher
from radixlm.text.detokenizer import PROMPT_TAIL, DecodedText, Detokenizer, NoText
from radixlm.text.tokenizer import Tokenizer

# What a step may take, in seconds, for grammars that take long, and what is long for one answer.
BUDGET = 0.02
LONG = 0.002


class AnswerState:
    """One request's answer: its text, and where in its grammar it is.

    After a sampled token come those that the grammar forces (jump-forward). They are cut as the
    tokenizer would have cut the text, as far as what follows can not change that; so the cache
    finds them again when the answer comes back as a prompt.

    jump_forward: without it, all tokens that spell the text are allowed.
    """

    __slots__ = ("_room", "matcher", "request", "text")

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
        if self.matcher is not None:
            self.matcher.jumps = jump_forward
        self._room = request.max_tokens

    def take(self, tokens: tuple[int, ...]) -> NewTokens:
        """Go on by tokens, to the first end there is, or to one that its grammar does not allow."""
        text, stop, pieces = "", None, list[tuple[int, int]]()
        error, complete = None, False
        begun = 0.0 if self.matcher is None else thread_time()
        for token in tokens[: self._room]:
            if self.matcher is not None:
                error, complete = _follow(self.matcher, token)
            if error is not None:
                break
            self._room -= 1
            ended = token in self.request.stop_token_ids
            piece = DecodedText("") if ended else self.text.push(token)
            text, stop = text + piece.text, piece.stop
            pieces.append((1, len(piece.text)))
            if ended or complete or stop is not None:
                break
        if self.matcher is not None:
            self.matcher.weight.step = thread_time() - begun
        return NewTokens(tokens[: len(pieces)], text, stop, complete, error, tuple(pieces))


def _follow(matcher: Matcher, token: int) -> tuple[str | None, bool]:
    """Go on by a token: the reason why it can not be taken, and whether nothing can follow it."""
    if matcher.error is None and matcher.accept([token]):
        return None, matcher.complete
    reason = matcher.error or f"token {token} is not allowed"
    return f"the grammar can not be followed any further: {reason}", False


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
        self.matchers: dict[str, Matcher] = {}  # of those that follow a grammar
        self.to_pin: dict[str, GenerateRequest] = {}

    def add(self, request: GenerateRequest) -> None:
        """A request is queued."""
        name = request.request_id
        answer = AnswerState(request, self._tokenizer, jump_forward=self._jump_forward)
        self.answers[name] = answer
        if answer.matcher is not None:
            self.matchers[name] = answer.matcher
        if request.breakpoints:
            self.to_pin[request.request_id] = request

    def held(self, running: Iterable[RequestState]) -> frozenset[str]:
        """The requests whose turn it is not. Requests whose grammars take long wait for each other,
        so that no other request waits for all of them: a step goes on with those that moved longest
        ago, as many as the budget has room for by what their grammars took of late, but one at
        least.
        """
        slow = []
        for state in running if self.matchers else ():
            name = state.request.request_id
            matcher = self.matchers.get(name)
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
        rows = {
            place: row
            for place, row in enumerate(batch.rows if self.matchers else ())
            if row.samples and row.request.request_id in self.matchers
        }
        if self._masks is None or not rows:
            return batch
        matchers = [self.matchers[row.request.request_id] for row in rows.values()]
        drafts = {i: row.draft for i, row in enumerate(rows.values()) if row.drafted}
        return replace(batch, masks=TokenMasks(tuple(rows), self._masks.start(matchers, drafts)))

    def take(self, batch: ScheduledBatch, result: StepResult) -> dict[str, NewTokens]:
        """Take the sampled tokens; what they have become, by request."""
        if batch.masks is not None:
            batch.masks.bits.result()  # a matcher is left alone until its mask is made
        return {
            row.request.request_id: self.answers[row.request.request_id].take(
                self._sound(row, drawn) + result.known.get(place, ())
            )
            for place, row in enumerate(batch.rows)
            if (drawn := result.drawn(place))
        }

    def _sound(self, row: ScheduledRow, drawn: tuple[int, ...]) -> tuple[int, ...]:
        """The first tokens, up to one whose mask could not be filled."""
        matcher = self.matchers.get(row.request.request_id)
        return drawn if matcher is None else drawn[: matcher.masked]

    def complete(self, output: RequestOutput) -> RequestOutput:
        """Add the breakpoints that were pinned, with the first tokens; at last, text held back."""
        if output.token_ids and output.request_id in self.to_pin:
            output = replace(output, kept=self._pin(self.to_pin.pop(output.request_id)))
        if output.finish_reason is None:
            return output
        self.to_pin.pop(output.request_id, None)
        self.matchers.pop(output.request_id, None)
        last = self.answers.pop(output.request_id).text.flush()
        reason, matched = output.finish_reason, output.matched_stop
        if last.stop is not None and reason in (FinishReason.STOP, FinishReason.LENGTH):
            reason, matched = FinishReason.STOP, last.stop
        text, pieces = output.text + last.text, output.pieces
        if pieces:
            tokens, characters = pieces[-1]
            pieces = (*pieces[:-1], (tokens, characters + len(last.text)))
        return replace(output, text=text, finish_reason=reason, matched_stop=matched, pieces=pieces)

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
