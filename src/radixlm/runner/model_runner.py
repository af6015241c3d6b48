"""The runner that computes with a model in this process."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import isnan
from types import MappingProxyType
from typing import Protocol

import torch
from torch import Tensor

from radixlm.attention.backends import Attend, make_backend
from radixlm.attention.plan import make_plan
from radixlm.core.batch import Failure, ScheduledBatch, ScheduledRow, StepResult
from radixlm.core.request import TokenLogprob
from radixlm.memory.pools import KVPool, ReqToTokenPool
from radixlm.models.model_config import ModelConfig
from radixlm.runner.forward_batch import ForwardBatch
from radixlm.runner.masks import forbid_kernel
from radixlm.runner.sampler import sample
from radixlm.runner.token_logprobs import token_logprobs


class Model(Protocol):
    """What a model must be: one call that goes through all layers."""

    @property
    def config(self) -> ModelConfig: ...

    def forward(
        self, token_ids: Tensor, positions: Tensor, attend: Attend, logit_rows: Tensor
    ) -> Tensor:
        """(tokens,), (tokens,), ..., (n,) int64 -> (n, vocab) float32 logits."""
        ...


class ModelRunner:
    """Computes one step: request table -> plan -> model -> tokens (an engine's `Runner`).

    It keeps nothing of a request but its row of the table and its keys and values. Prompt
    log-probabilities need the logits of a whole chunk at once, 4 bytes x chunk x vocabulary:
    `--chunked-prefill-size` bounds them.
    """

    def __init__(
        self,
        model: Model,
        kv_pool: KVPool,
        req_to_token: ReqToTokenPool,
        device: torch.device | str = "cpu",
    ) -> None:
        self._model = model
        self._kv_pool = kv_pool
        self._req_to_token = req_to_token
        self._device = torch.device(device)
        self._token_bytes = kv_pool.nbytes // kv_pool.capacity
        self._backend = make_backend(kv_pool, model.config.n_heads)
        if self._device.type == "cpu":
            forbid_kernel()  # not in the first step that needs it: others are in it

    @torch.inference_mode()
    def execute(self, batch: ScheduledBatch) -> StepResult:
        """Compute the batch's new tokens and sample where rows ask for it."""
        if not batch.rows:
            return StepResult(tokens=())
        for row in batch.rows:
            self._req_to_token.apply(row)
        forward = ForwardBatch.from_scheduled(batch, self._device)
        plan = make_plan(batch.rows, self._backend.group_tokens, self._backend.sharing)
        attend = self._backend.prepare(plan, self._req_to_token.table, forward.slots)
        logits = self._model.forward(
            forward.token_ids, forward.positions, attend, forward.logit_rows
        )
        result = _result(batch, forward, logits)
        return replace(
            result,
            failed=MappingProxyType(
                {place: self._failure(batch.rows[place]) for place in _failed(forward, result)}
            ),
            kv_bytes_read=self._token_bytes * plan.kv_tokens_read,
            kv_bytes_of_rows=self._token_bytes * plan.kv_tokens_of_rows,
        )

    def _failure(self, row: ScheduledRow) -> Failure:
        return Failure(
            "the model gave numbers that are not finite, from which no token can be chosen; its "
            "weights may be broken, or too large for this dtype",
            self._kv_pool.sound(self._req_to_token.table[row.row, : row.stop].long()),
        )


def _failed(forward: ForwardBatch, result: StepResult) -> set[int]:
    """Places of the rows whose logits are not finite."""
    of_prompts = {
        place
        for place, entries in result.prompt_logprobs.items()
        if any(isnan(entry.logprob) for entry in entries)
    }
    return of_prompts | {place for place in forward.sampling if result.tokens[place] is None}


def _result(batch: ScheduledBatch, forward: ForwardBatch, logits: Tensor) -> StepResult:
    rows = [batch.rows[i] for i in forward.sampling]
    masks = None
    if batch.masks is not None:
        masks = [forward.sampling.index(p) for p in batch.masks.places], batch.masks.bits.result()
    scores = logits[: len(rows)]
    if masks is not None and any(rows[i].request.params.logprobs is not None for i in masks[0]):
        scores = scores.clone()  # masks forbid in place, log-probabilities are of all tokens
    sampled = sample(scores, rows, masks)
    tokens: list[int | None] = [None] * len(batch.rows)
    for place, token in zip(forward.sampling, sampled, strict=True):
        tokens[place] = token
    return StepResult(
        tokens=tuple(tokens),
        logprobs=MappingProxyType(_logprobs(forward.sampling, rows, logits, sampled)),
        prompt_logprobs=MappingProxyType(_prompt_logprobs(batch, forward, logits)),
    )


def _logprobs(
    places: Sequence[int],
    rows: Sequence[ScheduledRow],
    logits: Tensor,
    sampled: Sequence[int | None],
) -> dict[int, TokenLogprob]:
    asked = [
        (i, token, top)
        for i, (row, token) in enumerate(zip(rows, sampled, strict=True))
        if token is not None and (top := row.request.params.logprobs) is not None
    ]
    if not asked:
        return {}
    picked, tokens, tops = zip(*asked, strict=True)
    made = token_logprobs(logits[list(picked)], tokens, tops)
    return {places[i]: entry for i, entry in zip(picked, made, strict=True)}


def _prompt_logprobs(
    batch: ScheduledBatch, forward: ForwardBatch, logits: Tensor
) -> dict[int, tuple[TokenLogprob, ...]]:
    made = {}
    for prompt in forward.prompts:
        part = logits[prompt.first : prompt.first + len(prompt.targets)]
        top = batch.rows[prompt.row].request.params.prompt_logprobs or 0
        made[prompt.row] = token_logprobs(part, prompt.targets, [top] * len(prompt.targets))
    return made
