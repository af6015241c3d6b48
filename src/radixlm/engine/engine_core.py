"""The seam between the loop and the tensors."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Protocol

from radixlm.cache import Pin, RadixCache
from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.core.errors import InvalidRequestError
from radixlm.core.misses import Explained
from radixlm.core.request import FinishReason, GenerateRequest, RequestOutput
from radixlm.engine.engine_stats import EngineStats
from radixlm.engine.keeping import Keeping
from radixlm.engine.messages import Explain, Flush, Flushed, PinPrefix, Question, Unpin
from radixlm.engine.output_processor import Continuation, Following, Grown
from radixlm.engine.watching import Journal, Watching
from radixlm.scheduler import Progress, Scheduler
from radixlm.structured_output import MaskFiller
from radixlm.text.tokenizer import Tokenizer


class Runner(Protocol):
    """Computes one step. It holds no request state: the batch carries all it needs."""

    def execute(self, batch: ScheduledBatch) -> StepResult: ...


_logger = logging.getLogger("radixlm.engine")

_ENDS = (FinishReason.STOP, FinishReason.LENGTH)


class EngineCore:
    """Everything that one step touches, in one thread. It knows neither threads nor clients.

    Text is made before `update`, so that a stop string ends its request in the step in which it
    is complete. Masks for rows that follow a grammar are made while the runner computes.

    masks: needed for requests with a grammar. jump_forward: see Continuation. journal: what the
    scheduler notes, for those who watch; without it they see no request come or go.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cache: RadixCache,
        runner: Runner,
        tokenizer: Tokenizer,
        *,
        masks: MaskFiller | None = None,
        jump_forward: bool = True,
        journal: Journal | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._cache = cache
        self._runner = runner
        self._tokenizer = tokenizer
        self._masks = masks
        self._jump_forward = jump_forward
        self._answers: dict[str, Continuation] = {}
        self._following = Following(masks, self._answers)
        self._keeping = Keeping(cache)
        self.watching = Watching(
            cache, scheduler, Journal() if journal is None else journal, self.stats
        )
        self._steps = 0
        self._kv_bytes_read = 0
        self._kv_bytes_of_rows = 0
        self._leaks = 0

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    def add(self, request: GenerateRequest, *, waited: float = 0.0) -> None:
        """Queue a request, which came `waited` seconds ago. Raises InvalidRequestError; then
        nothing of it is kept.
        """
        if request.constraint is not None and self._masks is None:
            raise InvalidRequestError("this engine follows no grammars", param="grammar")
        self._scheduler.add(request, waited=waited)
        self._keeping.add(request)
        self._answers[request.request_id] = Continuation(
            request, self._tokenizer, jump_forward=self._jump_forward
        )

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now; its last output, or None when it is not under way."""
        news = self._scheduler.abort(request_id)
        self.check_idle()
        return self._output(news, "") if news else None

    def step(self) -> list[RequestOutput]:
        """One forward pass and what it means for every request in it."""
        held = self._following.held(self._scheduler.running)
        batch = self._following.with_masks(self._scheduler.schedule(held))
        result = self._runner.execute(batch)
        grown = self._grow(batch, result)
        taken = {name: item.taken for name, item in grown.items()}
        news = self._scheduler.update(batch, result, taken)
        self._steps += 1
        self._kv_bytes_read += result.kv_bytes_read
        self._kv_bytes_of_rows += result.kv_bytes_of_rows
        self.check_idle()
        texts = {name: item.text for name, item in grown.items()}
        return [self._output(item, texts.get(item.request_id, "")) for item in news]

    def answer(self, question: Question) -> Flushed | Pin | Explained | None:
        """Do what is asked of the cache. Raises CacheError; then nothing has changed."""
        match question:
            case Flush():
                return Flushed(self._cache.flush(), idle=not self.has_work)
            case PinPrefix(key, namespace, ttl):
                return self._cache.pin(key, namespace, ttl=ttl)
            case Unpin(pin_id):
                self._cache.unpin(pin_id)
                return None
            case Explain(key, namespace, everywhere):
                return self._cache.explain(key, namespace, everywhere=everywhere)

    def check_idle(self) -> None:
        """With nothing under way every slot must be free, evictable or pinned; else log and count
        it.
        """
        if self.has_work:
            return
        usage = self._cache.usage()
        if usage.private or usage.locked != self._cache.tree.pinned_size:
            self._leaks += 1
            _logger.error("slots leaked: %s of %d while idle", usage, self._cache.capacity)

    def stats(self) -> EngineStats:
        usage = self._cache.usage()
        counters = self._scheduler.counters
        tree = self._cache.tree.stats
        return EngineStats(
            running=self._scheduler.n_running,
            waiting=self._scheduler.n_waiting,
            kv_capacity=self._cache.capacity,
            kv_free=usage.free,
            kv_private=usage.private,
            kv_locked=usage.locked,
            kv_evictable=usage.evictable,
            kv_pinned=self._cache.tree.pinned_size,
            ghost_tokens=self._cache.tree.ghost_size,
            tree_nodes=self._cache.tree.node_count,
            tree_leaves=tree.leaves,
            evicted_tokens=tree.evicted_tokens,
            revived_tokens=tree.revived_tokens,
            prompt_tokens=counters.prompt_tokens,
            cached_tokens=counters.cached_tokens,
            readmitted_tokens=counters.readmitted_tokens,
            readmitted_cached=counters.readmitted_cached,
            computed_tokens=counters.computed_tokens,
            output_tokens=counters.output_tokens,
            requests_finished=counters.finished,
            requests_aborted=counters.aborted,
            retractions=counters.retractions,
            preemptions=counters.preemptions,
            steps=self._steps,
            kv_bytes_read=self._kv_bytes_read,
            kv_bytes_of_rows=self._kv_bytes_of_rows,
            leaks=self._leaks,
            picture_failures=self.watching.failures,
            hit_rate=counters.hit_rate,
            reuse_age=tree.reuse_age.tally(),
            match_depth=tree.match_depth.tally(),
            hits_at_eviction=tree.hits_at_eviction.tally(),
            endings=dict(tree.endings),
            expected_tokens=tuple(counters.expected_tokens),
        )

    def _grow(self, batch: ScheduledBatch, result: StepResult) -> dict[str, Grown]:
        """What the sampled tokens have become, by request.

        What is forced is taken at once, however long others took: as tokens that were sampled later
        it would be cut differently, and answers would depend on the clock.
        """
        if batch.masks is not None:
            batch.masks.bits.result()  # a matcher is left alone until its mask is made
        sampled = zip(batch.rows, result.tokens, strict=True)
        return {
            row.request.request_id: self._answers[row.request.request_id].take(token)
            for row, token in sampled
            if token is not None
        }

    def _output(self, news: Progress, text: str) -> RequestOutput:
        kept = self._keeping.computed(news.request_id) if news.tokens else ()
        if news.finish_reason is not None:
            last = self._answers.pop(news.request_id).flush()
            text += last.text
            if last.stop is not None and news.finish_reason in _ENDS:
                news = replace(news, finish_reason=FinishReason.STOP, matched_stop=last.stop)
            self._keeping.forget(news.request_id)
        return RequestOutput(
            request_id=news.request_id,
            text=text,
            token_ids=news.tokens,
            prompt_tokens=news.prompt_tokens,
            cached_tokens=news.cached_tokens,
            finish_reason=news.finish_reason,
            matched_stop=news.matched_stop,
            logprobs=news.logprobs,
            prompt_logprobs=news.prompt_logprobs,
            kept=kept,
            error=news.error,
            miss=news.miss,
            queued=news.queued,
        )
