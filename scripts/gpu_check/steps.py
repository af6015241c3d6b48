"""Steps of a runner, without an engine: models with random weights, and rows in any number."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch

from radixlm.core.batch import Extent, Remap, ScheduledBatch, ScheduledRow, Segment
from radixlm.core.keys import as_key
from radixlm.core.request import GenerateRequest
from radixlm.core.sampling import SamplingParams
from radixlm.memory.pools import KVPool, ReqToTokenPool
from radixlm.models import CausalLM, ModelConfig
from radixlm.runner import ModelRunner
from radixlm.runner.step_graphs import record_for
from radixlm.testing.checkpoints import SHAPES
from scripts.gpu_check.place import Place


class Step(NamedTuple):
    """rows: requests; before: tokens of each that are in the pool; new: that are computed; shared:
    of those before, that all rows share.
    """

    name: str
    rows: int
    before: int
    new: int = 1
    shared: int = 0

    @property
    def tokens(self) -> int:
        """In the pool at the end, those that are shared once."""
        return self.shared + self.rows * (self.before - self.shared + self.new)

    def batch(self, *, begins: bool) -> ScheduledBatch:
        """begins: the request table does not know the rows yet."""
        shared = np.arange(self.shared, dtype=np.int32)
        own = self.before - self.shared + self.new
        rows = []
        for row in range(self.rows):
            first = self.shared + row * own
            slots = np.concatenate([shared, np.arange(first, first + own, dtype=np.int32)])
            key = as_key(np.arange(slots.size) % 250)
            top = Segment(1, 0, self.shared, (Extent(0, self.shared),))
            rest = Segment(None, self.shared, slots.size, (Extent(first, first + own),))
            params = SamplingParams(temperature=0)
            rows.append(
                ScheduledRow(
                    request=GenerateRequest(f"{row}", key, params, max_tokens=64, seed=0),
                    row=row,
                    tokens=key,
                    start=self.before,
                    prompt_length=key.size,
                    new_slots=slots[self.before :],
                    remaps=(Remap(0, slots[: self.before]),) if begins else (),
                    segments=(top, rest) if self.shared else (rest,),
                    samples=True,
                )
            )
        return ScheduledBatch(tuple(rows))


def random_model(shape: str, place: Place) -> CausalLM:
    """Made on the device: writing and reading a checkpoint would take minutes."""
    config = ModelConfig.from_hf(dict(SHAPES[shape]) | {"torch_dtype": "bfloat16"})
    model = CausalLM(config, dtype=torch.bfloat16, device=torch.device(place.device))
    for weight in model.weights().values():
        weight.normal_(0, 0.02)
    return model


def runner_for(
    model: CausalLM, step: Step, place: Place, pool: KVPool | None = None
) -> ModelRunner:
    """One that records its steps. pool: None: one in bfloat16 that has room for the step."""
    config, device = model.config, torch.device(place.device)
    shape = config.n_layers, step.tokens, config.n_kv_heads, config.head_dim
    pool = pool or KVPool(*shape, torch.bfloat16, device)
    table = ReqToTokenPool(step.rows, step.before + step.new, device)
    return ModelRunner(model, pool, table, device, record=record_for(model, pool))
