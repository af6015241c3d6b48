"""The runner that computes with a model in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import isnan
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from radixlm.attention.attend import Attend
from radixlm.attention.backends import make_backend
from radixlm.attention.plan import AttentionPlan, make_plan
from radixlm.core.batch import Failure, ScheduledBatch, ScheduledRow, StepResult
from radixlm.layers.expansion import Expansion
from radixlm.layers.lora import Adapted
from radixlm.layers.step_states import NO_STATES, StateRow, StepStates
from radixlm.memory.pools import KVPool, ReqToTokenPool
from radixlm.memory.staging import NoPlaceError, Sending, ranges, staging_for
from radixlm.memory.state_pool import StatePool
from radixlm.models.decoder import PooledRows
from radixlm.models.draft_head import DraftHead
from radixlm.models.model_config import ModelConfig
from radixlm.runner.adapter_shelf import AdapterShelf
from radixlm.runner.draft_heads import HeadDrafter
from radixlm.runner.logits_processors import forbid_kernel
from radixlm.runner.pooled_rows import Places, pooled_places, summed
from radixlm.runner.step_answers import PromptLogits, StepAnswers, Swap
from radixlm.runner.step_graphs import FixedMemory, Record, RecordableBackend, StepGraphs

# In place of a slot: a step that is recorded has tokens that are none.
NOWHERE = -1


@dataclass(frozen=True, slots=True, eq=False)
class ForwardBatch:
    """One step's tokens, all rows one after the other, on the device.

    token_ids, positions, slots: (tokens,) int64. positions: see `Rotary`.
    logit_rows: (n,) int64, tokens whose logits are wanted: first the last token of each row in
        `sampling`, in that order, with what is drafted, then those of `prompts`.
    sampling: places in the batch of the rows that sample. places, pooled: see `pooled_places`.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    logit_rows: Tensor
    sampling: tuple[int, ...]
    prompts: tuple[PromptLogits, ...]
    places: Places
    pooled: PooledRows | None

    @classmethod
    def from_scheduled(
        cls, batch: ScheduledBatch, sending: Sending, short_start: int = 0
    ) -> ForwardBatch:
        """Lay the batch out. short_start: the first position of rows whose keys turn by LongRoPE's
        short factors.
        """
        rows = batch.parts
        places = [place for place, row in enumerate(batch.rows) for _ in row.parts]
        ends = [*accumulate(row.n_new for row in rows)]
        sampling = tuple(place for place, row in enumerate(batch.rows) if row.samples)
        both = zip(rows, ends, strict=True)
        drawn = [(end - row.drafted - 1, row.drafted + 1) for row, end in both if row.samples]
        wanted, counts = [first for first, _ in drawn], [count for _, count in drawn]
        prompts = []
        count = sum(counts)
        for i, row in enumerate(rows):
            targets = _prompt_targets(row)
            if targets:
                prompts.append(PromptLogits(places[i], count, targets))
                # Row by row of the logits, the first one predicts the first target.
                first = ends[i] - row.n_new + _first_target(row) - 1 - row.start
                wanted.append(first)
                counts.append(len(targets))
                count += len(targets)
        starts = [_first_position(row, short_start) for row in rows]
        put, room, pooled = sending.put, sending.tokens, pooled_places(batch)
        return cls(
            token_ids=put(_joined(row.tokens[row.start :] for row in rows), room),
            positions=put(ranges(starts, [row.n_new for row in rows]), room),
            slots=put(_joined(row.new_slots for row in rows), room, NOWHERE),
            logit_rows=put(ranges(wanted, counts), room),
            sampling=sampling,
            prompts=tuple(prompts),
            places=pooled,
            pooled=PooledRows(put(_joined(pooled.values()))) if pooled else None,
        )

    def promise(self, batch: ScheduledBatch, before: StepAnswers, sending: Sending) -> None:
        """Have promised tokens taken on the device, where the step before draws them, once the
        others are there. In place of what it could not draw comes token 0, which nobody will read.
        """
        rows = batch.parts
        ends = zip(accumulate(row.n_new for row in rows), rows, strict=True)
        places = {row.row: end - 1 for end, row in ends if row.promised}
        here = sending.put(np.array([*places.values()]))
        there = sending.put(np.array(before.places([*places])))

        def take() -> None:
            drawn = before.tokens.index_select(0, there).clamp_(min=0)
            self.token_ids.index_copy_(0, here, drawn)

        sending.after(take)


def _first_position(row: ScheduledRow, short_start: int) -> int:
    return row.start + (0 if row.request.namespace.long_rope else short_start)


def _prompt_targets(row: ScheduledRow) -> tuple[int, ...]:
    """Prompt tokens that follow this step's and whose log-probabilities are wanted; the last may
    lie one beyond it, in the next chunk.
    """
    if row.request.params.prompt_logprobs is None:
        return ()
    stop = min(row.stop + 1, row.prompt_length)
    return tuple(row.request.key[_first_target(row) : stop].tolist())


def _first_target(row: ScheduledRow) -> int:
    return max(row.start + 1, row.request.params.first_prompt_logprob)


def _joined(parts: Iterable[npt.NDArray[np.integer]]) -> npt.NDArray[np.int64]:
    return np.concatenate(list(parts), dtype=np.int64)


class Model(Protocol):
    """A model as the runner calls it: one call that goes through all layers."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def expansions(self) -> Sequence[Expansion]:
        """The matrices of each layer that expand latents, where the pool keeps them; else empty."""

    def forward(
        self,
        token_ids: Tensor,
        positions: Tensor,
        attend: Attend,
        logit_rows: Tensor,
        adapted: Adapted | None,
        states: StepStates,
        pooled: PooledRows | None = None,
    ) -> Tensor:
        """(tokens,), (tokens,), ..., (n,) int64 -> (n, vocab) float32 logits. pooled: see
        `CausalLM`.
        """
        ...


class Sound(Protocol):
    """`KVPool.sound`, or that of several pools."""

    def __call__(self, slots: Tensor, *, in_windows: bool = False) -> int: ...


class _Planned(NamedTuple):
    """A step that is laid out. sending: where its numbers were put."""

    forward: ForwardBatch
    plan: AttentionPlan
    attend: Attend
    sending: Sending


class ModelRunner:
    """Computes one step: request table -> plan -> model -> tokens (an engine's `Runner`).

    It keeps nothing of a request but its row of the table and its keys and values. Prompt
    log-probabilities need the logits of a whole chunk at once, 4 bytes x chunk x vocabulary:
    `--chunked-prefill-size` bounds them.

    deterministic: attention gives a token the same bits in any company; ConfigError where there is
    no such. The same of products was decided when the model was packed. adapters: those that rows
    may have. swap: see `StepAnswers.read`. head: drafts, and has a layer of the pool. record:
    records steps, where the backend knows how.
    """

    def __init__(
        self,
        model: Model,
        kv_pool: KVPool,
        req_to_token: ReqToTokenPool,
        device: torch.device | str = "cpu",
        *,
        deterministic: bool = False,
        adapters: AdapterShelf | None = None,
        sound: Sound | None = None,
        states: StatePool | None = None,
        swap: Swap = None,
        head: DraftHead | None = None,
        record: Record | None = None,
    ) -> None:
        self._staging = sending = staging_for(torch.device(device))
        self._head = None if head is None else HeadDrafter(head, kv_pool, req_to_token, sending)
        kv_pool = kv_pool.model_layers()
        self._states = states
        self._swap, self._vocab = swap, model.config.vocab_size
        self._sound = kv_pool.sound if sound is None else sound
        self._kv_pool = kv_pool
        self._model = model
        self._adapters = adapters
        self._req_to_token = req_to_token
        config = model.config
        # Of a token, in all layers with a window.
        self._bytes = Counter[int | None]()
        for layer, window in enumerate(config.windows or (None,) * kv_pool.n_layers):
            self._bytes[window] += kv_pool.layer_bytes(layer)
        self._short_start = 0 if config.short_length is None else config.context_length
        self._backend = make_backend(
            kv_pool,
            config.n_heads,
            windows=config.windows,
            cap=config.traits.score_cap,
            deterministic=deterministic,
            expansions=model.expansions,
            index=config.traits.indexer,
        )
        self._last: StepAnswers | None = None
        self._graphs: StepGraphs | None = None
        if record is not None and isinstance(self._backend, RecordableBackend):
            self._graphs = StepGraphs(self._backend, self._staging, record)
        if self._staging.device.type == "cpu":
            forbid_kernel()  # not in the first step that needs it: others are in it

    @property
    def goes_ahead(self) -> bool:
        """Whether a step computes while the host does something else, and neither a draft head nor
        what is to count instead needs the tokens of the one before.
        """
        return self._staging.device.type != "cpu" and self._head is None and self._swap is None

    def execute(self, batch: ScheduledBatch) -> StepResult:
        """Compute the batch's new tokens and sample where rows ask for it."""
        return self.launch(batch)() if batch.rows else StepResult(tokens=())

    @torch.inference_mode()
    def launch(self, batch: ScheduledBatch) -> Callable[[], StepResult]:
        """Launch a step, which a GPU computes after those that were launched before. What waits
        for it; the next step may be launched first, with tokens promised by this one.
        """
        planned = self._planned(batch)
        forward, staging = planned.forward, self._staging
        answers = StepAnswers(batch, forward.sampling, forward.prompts, self._vocab, staging)
        if self._last is not None:
            self._last.let_go()
            if any(row.promised for row in batch.rows):
                forward.promise(batch, self._last, staging)
        answers.ask(self._logits(batch, planned))
        # Else it would keep logits, and the next ones would lie in other memory.
        self._last = answers if self.goes_ahead else None
        return partial(self._result, batch, planned, answers)

    @torch.inference_mode()
    def _result(self, batch: ScheduledBatch, planned: _Planned, answers: StepAnswers) -> StepResult:
        forward, plan = planned.forward, planned.plan
        drawn, logprobs, prompt_logprobs, flat = answers.read(self._swap)
        tokens = [next(iter(drawn.get(place, ())), None) for place in range(len(batch.rows))]
        failed = [
            place
            for place, row in enumerate(batch.rows)
            if (row.samples and tokens[place] is None and place not in flat)
            or any(isnan(entry.logprob) for entry in prompt_logprobs.get(place, ()))
        ]
        ahead: dict[int, tuple[int, ...]] = {}
        if self._head is not None:
            with torch.cuda.device_of(self._req_to_token.table):
                ahead = self._head.step(batch, forward.slots, drawn)
        return StepResult(
            tokens=tuple(tokens),
            more=MappingProxyType({i: its[1:] for i, its in drawn.items() if its[1:]}),
            logprobs=MappingProxyType(logprobs),
            prompt_logprobs=MappingProxyType(prompt_logprobs),
            failed=MappingProxyType({place: self._failure(batch.rows[place]) for place in failed}),
            kv_bytes_read=self._bytes_read(plan),
            kv_bytes_of_rows=self._bytes.total() * plan.kv_tokens_of_rows,
            ahead=MappingProxyType(ahead),
            hidden=MappingProxyType(summed(forward.places, forward.pooled)),
            flat=flat,
        )

    def compute(self, batch: ScheduledBatch) -> tuple[ForwardBatch, AttentionPlan, Tensor]:
        """A step without sampling, in inference mode: its tokens, what attention reads, logits."""
        planned = self._planned(batch)
        return planned.forward, planned.plan, self._logits(batch, planned)

    def _planned(self, batch: ScheduledBatch) -> _Planned:
        """Put all that the device is to know of a step before it is sent."""
        staging, parts = self._staging, batch.parts
        staging.begin()
        self._req_to_token.apply(parts, staging)
        if batch.windows is not None:
            self._kv_pool.move(batch.windows, staging)
        plan = make_plan(parts, self._backend.sharing)
        memory = None if self._graphs is None else self._graphs.memory(batch.n_tokens)
        if memory is not None and self.is_recordable(batch):
            with suppress(NoPlaceError):
                memory.begin()
                made = self._laid_out(batch, plan, memory)
                memory.send()
                return made
        return self._laid_out(batch, plan, staging)

    def _laid_out(self, batch: ScheduledBatch, plan: AttentionPlan, sending: Sending) -> _Planned:
        forward = ForwardBatch.from_scheduled(batch, sending, self._short_start)
        table = self._req_to_token.table
        attend = self._backend.prepare(plan, table, forward.slots, sending)
        return _Planned(forward, plan, attend, sending)

    def is_recordable(self, batch: ScheduledBatch) -> bool:
        """Whether it may be a recorded step, where the model's are: adapters are of a step, and
        states of pooled rows are read besides logits.
        """
        if any(row.request.pooled for row in batch.rows):
            return False
        return self._adapters is None or not self._adapters.of_step(batch.parts)

    def _logits(self, batch: ScheduledBatch, planned: _Planned) -> Tensor:
        forward = planned.forward
        adapted = None if self._adapters is None else self._adapters.of_step(batch.parts)
        states = self._states_of(batch)
        with torch.cuda.device_of(self._req_to_token.table):  # where Triton launches
            self._staging.send()
            work = partial(
                self._model.forward,
                forward.token_ids,
                forward.positions,
                planned.attend,
                forward.logit_rows,
                adapted,
                states,
                forward.pooled,
            )
            if self._graphs is not None and isinstance(planned.sending, FixedMemory):
                return self._graphs.run(planned.sending, work)
            return work()

    def _states_of(self, batch: ScheduledBatch) -> StepStates:
        """The states of the batch's rows, as they are before it."""
        pool = self._states
        if pool is None:
            return NO_STATES
        if batch.states is not None:
            pool.move(batch.states)
        ends = accumulate(row.n_new for row in batch.rows)
        rows = [
            _state_row(row, end - row.n_new, row.state)
            for end, row in zip(ends, batch.rows, strict=True)
            if row.state is not None
        ]
        return StepStates(rows, pool.conv, pool.matrices, self._staging.put)

    def _bytes_read(self, plan: AttentionPlan) -> int:
        """The bytes of keys and values that are read, in all layers."""
        return sum(plan.within(w).kv_tokens_read * its for w, its in self._bytes.items())

    def _failure(self, row: ScheduledRow) -> Failure:
        return Failure(
            "the model gave numbers that are not finite, from which no token can be chosen; its "
            "weights may be broken, or too large for this dtype",
            self._sound_in(row),
        )

    def _sound_in(self, row: ScheduledRow) -> int:
        """How many of a row's first tokens are numbers. Window layers with slots of their own have
        the last ones only: if the first of these is not a number, none counts. Nor does any where
        there are states.
        """
        if self._states is not None:
            return 0  # a state is what all tokens before it made of it
        slots, pool = self._req_to_token.table[row.row, : row.known].long(), self._kv_pool
        sound = self._sound(slots)
        if pool.windows is None:
            return sound
        seen = max(row.start + 1 - min(filter(None, self._bytes)), 0)
        there = self._sound(slots[seen:], in_windows=True)
        return min(sound, seen + there) if there else 0


def _state_row(row: ScheduledRow, first: int, slot: int) -> StateRow:
    copies = *row.checkpoints, *row.spares
    its = tuple((first + end - row.start, copy) for end, copy in copies)
    return StateRow(first, first + row.n_new, row.start, slot, its)
