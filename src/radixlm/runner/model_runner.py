"""The runner that computes with a model in this process."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice
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
from radixlm.core.request import Pooled, TokenLogprob
from radixlm.layers.expansion import Expansion
from radixlm.layers.lora import Adapted
from radixlm.layers.step_states import NO_STATES, StateRow, StepStates
from radixlm.memory.pools import KVPool, ReqToTokenPool
from radixlm.memory.state_pool import StatePool
from radixlm.models.decoder import PooledRows
from radixlm.models.draft_head import DraftHead
from radixlm.models.model_config import ModelConfig
from radixlm.runner.adapter_shelf import AdapterShelf
from radixlm.runner.draft_heads import HeadDrafter
from radixlm.runner.logits_processors import forbid_kernel
from radixlm.runner.sampler import sample, token_logprobs

Draw = Callable[
    [Tensor, Sequence[ScheduledRow], tuple[Sequence[int], npt.NDArray[np.int32]] | None],
    list[int | None],
]


class PromptLogits(NamedTuple):
    """Rows [first, first + len(targets)) of all logits predict these tokens of a prompt; row: the
    prompt's place in the batch.
    """

    row: int
    first: int
    targets: tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ForwardBatch:
    """One step's tokens, all rows one after the other, on the device.

    token_ids, positions, slots: (tokens,) int64. positions: see `Rotary`.
    logit_rows: (n,) int64, tokens whose logits are wanted: first the last token of each row in
        `sampling`, in that order, with what is drafted, then those of `prompts`.
    sampling: places in the batch of the rows that sample.
    """

    token_ids: Tensor
    positions: Tensor
    slots: Tensor
    logit_rows: Tensor
    sampling: tuple[int, ...]
    prompts: tuple[PromptLogits, ...]

    @classmethod
    def from_scheduled(
        cls, batch: ScheduledBatch, device: torch.device, short_start: int = 0
    ) -> ForwardBatch:
        """Lay the batch out; one copy to the device per tensor. short_start: the first position of
        rows whose keys turn by LongRoPE's short factors.
        """
        rows = batch.parts
        places = [place for place, row in enumerate(batch.rows) for _ in row.parts]
        ends = np.cumsum([row.n_new for row in rows], dtype=np.int64)
        sampling = tuple(place for place, row in enumerate(batch.rows) if row.samples)
        wanted = [
            np.arange(end - row.drafted - 1, end)
            for row, end in zip(rows, ends, strict=True)
            if row.samples
        ]
        prompts = []
        count = sum(map(len, wanted))
        for i, row in enumerate(rows):
            targets = _prompt_targets(row)
            if targets:
                prompts.append(PromptLogits(places[i], count, targets))
                # Row by row of the logits, the first one predicts the first target.
                first = ends[i] - row.n_new + _first_target(row) - 1 - row.start
                wanted.append(np.arange(first, first + len(targets), dtype=np.int64))
                count += len(targets)
        return cls(
            token_ids=_joined((row.tokens[row.start :] for row in rows), device),
            positions=_joined((_positions(row, short_start) for row in rows), device),
            slots=_joined((row.new_slots for row in rows), device),
            logit_rows=_joined(wanted or [ends[:0]], device),
            sampling=sampling,
            prompts=tuple(prompts),
        )


def _positions(row: ScheduledRow, short_start: int) -> npt.NDArray[np.integer]:
    first = 0 if row.request.namespace.long_rope else short_start
    return np.arange(first + row.start, first + row.stop)


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


def _joined(parts: Iterable[npt.NDArray[np.integer]], device: torch.device) -> Tensor:
    return torch.from_numpy(np.concatenate(list(parts)).astype(np.int64)).to(device)


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


class ModelRunner:
    """Computes one step: request table -> plan -> model -> tokens (an engine's `Runner`).

    It keeps nothing of a request but its row of the table and its keys and values. Prompt
    log-probabilities need the logits of a whole chunk at once, 4 bytes x chunk x vocabulary:
    `--chunked-prefill-size` bounds them.

    deterministic: attention gives a token the same bits in any company; ConfigError where there is
    no such. The same of products was decided when the model was packed. adapters: those that rows
    may have. draw: chooses tokens, as `sample` does. head: drafts, and has a layer of the pool.
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
        draw: Draw = sample,
        head: DraftHead | None = None,
    ) -> None:
        self._head = None if head is None else HeadDrafter(head, kv_pool, req_to_token)
        kv_pool = kv_pool.model_layers()
        self._states = states
        self._draw = draw
        self._sound = kv_pool.sound if sound is None else sound
        self._kv_pool = kv_pool
        self._model = model
        self._adapters = adapters
        self._req_to_token = req_to_token
        self._device = torch.device(device)
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
        if self._device.type == "cpu":
            forbid_kernel()  # not in the first step that needs it: others are in it

    @torch.inference_mode()
    def execute(self, batch: ScheduledBatch) -> StepResult:
        """Compute the batch's new tokens and sample where rows ask for it."""
        if not batch.rows:
            return StepResult(tokens=())
        wanted = _pooled_rows(batch)
        pooled = PooledRows(_joined(wanted.values(), self._device)) if wanted else None
        forward, plan, logits = self.compute(batch, pooled)
        drawn, logprobs = _sampled(batch, forward, logits, self._draw)
        tokens = [next(iter(drawn.get(place, ())), None) for place in range(len(batch.rows))]
        prompt_logprobs = _prompt_logprobs(batch, forward, logits)
        failed = [
            place
            for place, row in enumerate(batch.rows)
            if (row.samples and tokens[place] is None)
            or any(isnan(entry.logprob) for entry in prompt_logprobs.get(place, ()))
        ]
        ahead: dict[int, tuple[int, ...]] = {}
        if self._head is not None:
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
            hidden=MappingProxyType(_hidden(wanted, pooled)),
        )

    def compute(
        self, batch: ScheduledBatch, pooled: PooledRows | None = None
    ) -> tuple[ForwardBatch, AttentionPlan, Tensor]:
        """A step without sampling, in inference mode: its tokens, what attention reads, logits.
        pooled: see `CausalLM`.
        """
        self._req_to_token.apply(batch.parts)
        if batch.windows is not None:
            self._kv_pool.move(batch.windows)
        forward = ForwardBatch.from_scheduled(batch, self._device, self._short_start)
        plan = make_plan(batch.parts, self._backend.sharing)
        attend = self._backend.prepare(plan, self._req_to_token.table, forward.slots)
        adapted = None if self._adapters is None else self._adapters.of_step(batch.parts)
        with torch.cuda.device_of(self._req_to_token.table):  # where Triton launches
            logits = self._model.forward(
                forward.token_ids,
                forward.positions,
                attend,
                forward.logit_rows,
                adapted,
                self._states_of(batch),
                pooled,
            )
        return forward, plan, logits

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
        return StepStates(rows, pool.conv, pool.matrices)

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


def _sampled(
    batch: ScheduledBatch, forward: ForwardBatch, logits: Tensor, draw: Draw
) -> tuple[dict[int, tuple[int, ...]], dict[int, tuple[TokenLogprob, ...]]]:
    """The tokens of each row of the batch that samples, and by row their log-probabilities where
    they are asked for.
    """
    draws = [(place, row) for place in forward.sampling for row in batch.rows[place].draws()]
    places, rows = [place for place, _ in draws], [row for _, row in draws]
    asked = {place for place, row in draws if row.request.params.logprobs is not None}
    masks = None
    scores = logits[: len(rows)]
    if batch.masks is not None:
        masked = {*batch.masks.places}
        at = [index for index, place in enumerate(places) if place in masked]
        masks = at, batch.masks.bits.result()
        if not asked.isdisjoint(batch.masks.places):
            scores = scores.clone()  # masks forbid in place, log-probabilities are of all tokens
    sampled = iter(draw(scores, rows, masks))
    drawn = {place: [*islice(sampled, batch.rows[place].n_draws)] for place in forward.sampling}
    taken = {place: batch.rows[place].taken(its) for place, its in drawn.items()}
    wanted = [
        (place, places.index(place) + index, token)
        for place in forward.sampling
        if place in asked
        for index, token in zip(batch.rows[place].path(drawn[place]), taken[place], strict=True)
    ]
    logprobs: dict[int, tuple[TokenLogprob, ...]] = {}
    if wanted:
        at = [at for _, at, _ in wanted]
        tops = [rows[each].request.params.logprobs or 0 for each in at]
        made = token_logprobs(logits[at], [token for _, _, token in wanted], tops)
        for (place, _, _), entry in zip(wanted, made, strict=True):
            logprobs[place] = (*logprobs.get(place, ()), entry)
    return taken, logprobs


def _prompt_logprobs(
    batch: ScheduledBatch, forward: ForwardBatch, logits: Tensor
) -> dict[int, tuple[TokenLogprob, ...]]:
    made = {}
    for prompt in forward.prompts:
        part = logits[prompt.first : prompt.first + len(prompt.targets)]
        top = batch.rows[prompt.row].request.params.prompt_logprobs or 0
        made[prompt.row] = token_logprobs(part, prompt.targets, [top] * len(prompt.targets))
    return made


def _pooled_rows(batch: ScheduledBatch) -> dict[int, npt.NDArray[np.integer]]:
    """By place of pooled rows, their tokens of the step whose states are wanted."""
    wanted: dict[int, npt.NDArray[np.integer]] = {}
    end = 0
    for place, row in enumerate(batch.rows):
        begin, end = end, end + sum(part.n_new for part in row.parts)
        match row.request.pooled:
            case Pooled.LAST | Pooled.SCORES if row.samples:
                wanted[place] = np.arange(begin + row.n_new - 1, begin + row.n_new)
            case Pooled.FIRST if row.start == 0:
                wanted[place] = np.arange(begin, begin + 1)
            case Pooled.MEAN:
                wanted[place] = np.arange(begin, end)
    return wanted


def _hidden(
    wanted: Mapping[int, npt.NDArray[np.integer]], pooled: PooledRows | None
) -> dict[int, npt.NDArray[np.float32]]:
    """By place of pooled rows, the sum of the states that are wanted."""
    if pooled is None or pooled.states is None:
        return {}
    parts = pooled.states.float().split([its.size for its in wanted.values()])
    return {place: its.sum(0).cpu().numpy() for place, its in zip(wanted, parts, strict=True)}
