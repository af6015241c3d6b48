"""One step of the engine, and the seam between it and the tensors."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields
from functools import partial
from typing import Protocol, TypeAlias

from radixlm.cache import RadixCache
from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.core.errors import InvalidRequestError
from radixlm.core.request import GenerateRequest, RequestOutput
from radixlm.engine.engine_stats import EngineStats
from radixlm.engine.output_processor import OutputProcessor
from radixlm.engine.pooled_states import PooledStates
from radixlm.engine.tiering import Tiering
from radixlm.engine.watching import Journal, Watching
from radixlm.scheduler import Counters, Scheduler
from radixlm.structured_output import MaskFiller
from radixlm.text.tokenizer import Tokenizer

_logger = logging.getLogger("radixlm.engine")
_COUNTED = [item.name for item in fields(Counters)]


class Runner(Protocol):
    """Computes one step. It holds no request state: the batch carries all it needs."""

    def execute(self, batch: ScheduledBatch) -> StepResult: ...


# Has a step computed after those launched before; gives what waits for its result.
Launch: TypeAlias = Callable[[ScheduledBatch], Callable[[], StepResult]]


class EngineCore:
    """Everything that one step touches, in one thread. It knows neither threads nor clients.

    Text is made before `update`, so that a stop string ends its request in the step in which it
    is complete. Masks for rows that follow a grammar are made while the runner computes.

    tokenizer: None makes no text. masks: needed for requests with a grammar. jump_forward: see
    output_processor.AnswerState. journal: what the scheduler notes for viewers; without it they see
    no request come or go. tiering: where there is a store in host memory or on disk. stuck: nothing
    can be computed before it reports. pooled: what is made of states. launch: of a runner whose
    device computes by itself: the next step is scheduled and launched before the host waits for
    one, where its tokens need not be known for that; see Promises.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        cache: RadixCache,
        runner: Runner,
        tokenizer: Tokenizer | None,
        *,
        masks: MaskFiller | None = None,
        jump_forward: bool = True,
        journal: Journal | None = None,
        tiering: Tiering | None = None,
        pooled: PooledStates | None = None,
        launch: Launch | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.cache = cache
        self._runner, self._launch = runner, launch
        self._begun: tuple[ScheduledBatch, Callable[[], StepResult]] | None = None
        self._takes_grammars = masks is not None
        self.outputs = OutputProcessor(tokenizer, cache, masks, jump_forward=jump_forward)
        journal = Journal() if journal is None else journal
        self.watching = Watching(cache, scheduler, journal, cache.clock)
        self.tiering = tiering
        self._pooled = pooled or PooledStates()
        self.stuck = False
        self._steps = 0
        self._kv_bytes_read = 0
        self._kv_bytes_of_rows = 0
        self._leaks = 0

    @property
    def has_work(self) -> bool:
        return self.scheduler.has_work or self._begun is not None

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return len(self.scheduler.waiting)

    def add(self, request: GenerateRequest, *, waited: float = 0.0) -> None:
        """Queue a request that came `waited` seconds ago, or raise InvalidRequestError."""
        if request.constraint is not None and not self._takes_grammars:
            raise InvalidRequestError("this engine follows no grammars", param="grammar")
        self.scheduler.add(request, waited=waited)
        self.outputs.add(request)

    def abort(self, request_id: str) -> RequestOutput | None:
        """End a request now; its last output, or None when it is not under way."""
        output = self.scheduler.abort(request_id)
        self._pooled.drop(request_id)
        self.check_idle()
        return self.outputs.complete(output) if output else None

    def step(self) -> list[RequestOutput]:
        """One forward pass and what it means for every request in it."""
        if self._begun is None:
            held = self.outputs.held(self.scheduler.running)
            self._begin(self.scheduler.schedule(held, self.outputs.matchers))
        self.stuck = self._begun is None
        if self._begun is None:
            return []
        (batch, pending), self._begun = self._begun, None
        if self._launch is not None:
            self._begin(self.scheduler.schedule_ahead(batch))
        timing = nullcontext() if self.tiering is None else self.tiering.timing(batch.n_tokens)
        with timing:
            result = self.scheduler.promises.without_ended(batch, pending())
        grown = self.outputs.take(batch, result)
        outputs = self.scheduler.update(batch, result, grown)
        self._steps += 1
        self._kv_bytes_read += result.kv_bytes_read
        self._kv_bytes_of_rows += result.kv_bytes_of_rows
        self.check_idle()
        self._pooled.take(batch, result)
        return [self.outputs.complete(self._pooled.complete(output)) for output in outputs]

    def _begin(self, batch: ScheduledBatch) -> None:
        """Have a step computed, if it has rows: at once, or when its result is asked for."""
        if batch.rows:
            batch = self.outputs.with_masks(batch)
            execute = partial(self._runner.execute, batch)
            self._begun = batch, execute if self._launch is None else self._launch(batch)

    def seconds_left(self) -> float | None:
        """The seconds until watchers or tiers want a turn; None while they do not."""
        tiers = None if self.tiering is None else self.tiering.seconds_left()
        waits = [tiers, self.watching.seconds_left()]
        return min((each for each in waits if each is not None), default=None)

    def flush(self) -> tuple[int, bool]:
        """Drop all that no request and no pin uses; how many tokens, and whether nothing runs."""
        return self.cache.flush(), not self.scheduler.has_work

    def check_idle(self) -> None:
        """Check that with nothing under way every slot is free, evictable or pinned; log and count
        it.
        """
        if self.has_work or (self.tiering is not None and self.tiering.holds):
            return
        usage = self.cache.usage()
        if usage.private or usage.locked != self.cache.tree.pinned_size:
            self._leaks += 1
            _logger.error("slots leaked: %s of %d while idle", usage, self.cache.capacity)
        for each in self.cache.components:
            if (its := each.usage()).private or its.locked != each.pinned:
                self._leaks += 1
                _logger.error("%s: slots leaked: %s while idle", type(each).__name__, its)

    def stats(self) -> EngineStats:
        usage = self.cache.usage()
        counters = self.scheduler.counters
        tree = self.cache.tree.stats
        return EngineStats(
            **{name: getattr(counters, name) for name in _COUNTED},
            hit_rate=counters.cached_tokens / max(counters.prompt_tokens, 1),
            running=len(self.scheduler.running),
            waiting=len(self.scheduler.waiting),
            kv_capacity=self.cache.capacity,
            kv_free=usage.free,
            kv_private=usage.private,
            kv_locked=usage.locked,
            kv_evictable=usage.evictable,
            kv_pinned=self.cache.tree.pinned_size,
            ghost_tokens=self.cache.tree.ghosts.size,
            tree_nodes=self.cache.tree.node_count,
            tree_leaves=tree.leaves,
            evicted_tokens=tree.evicted_tokens,
            revived_tokens=tree.revived_tokens,
            steps=self._steps,
            kv_bytes_read=self._kv_bytes_read,
            kv_bytes_of_rows=self._kv_bytes_of_rows,
            leaks=self._leaks,
            picture_failures=self.watching.failures,
            reuse_age=tree.reuse_age.tally(),
            match_depth=tree.match_depth.tally(),
            hits_at_eviction=tree.hits_at_eviction.tally(),
            endings=dict(tree.endings),
            **({} if self.tiering is None else self.tiering.figures()),
            **{name: each for of in self.cache.components for name, each in of.figures().items()},
        )
