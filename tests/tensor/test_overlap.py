"""Steps launched while the one before is computed, on a device that pretends to be a GPU: the CPU's
tokens, and no more copies and waits than without.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.core.request import FinishReason, GenerateRequest
from radixlm.memory.staging import staging_for
from radixlm.runner.model_runner import ForwardBatch
from radixlm.runner.step_answers import StepAnswers
from radixlm.runner.step_graphs import FixedMemory
from radixlm.testing.reference import make_checkpoint
from tests.invariants import check
from tests.pretend_gpu import PretendGpu
from tests.tensor.rows import make_row
from tests.tensor.test_pretend_gpu import (
    COUNT,
    CPU,
    PROMPTS,
    SHARED,
    Served,
    asked,
    same,
    serve,
    steps_of,
)

# No prompt of others has it.
BROKEN = 300
DRAWN = {"temperature": 0.9, "top_p": 0.8, "min_p": 0.02}
SCORED = {"logprobs": 2, "prompt_logprobs": 1}


class Watched:
    """Counts what launches ask of the device, and the rows that are launched with a promise."""

    def __init__(self, served: Served, gpu: PretendGpu) -> None:
        self._gpu, self._launch = gpu, served.runner.launch
        self.waits = self.promised = 0
        served.runner.launch = self.launch  # type: ignore[method-assign]

    def launch(self, batch: ScheduledBatch) -> Callable[[], StepResult]:
        before = self._gpu.counts.waits
        self.promised += sum(row.promised for row in batch.rows)
        made = self._launch(batch)
        self.waits += self._gpu.counts.waits - before
        return made


def requests(**params: object) -> list[GenerateRequest]:
    return [asked(f"{place}", prompt, **params) for place, prompt in enumerate(PROMPTS)]


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "gpt_oss", "deepseek_v2"])
@pytest.mark.parametrize("params", [{}, DRAWN, SCORED], ids=["greedy", "drawn", "scored"])
def test_the_same_tokens(
    gpu: PretendGpu, tmp_path: Path, name: str, params: dict[str, object]
) -> None:
    """Prompts in chunks, what is cached, and answers of several lengths."""
    folder = make_checkpoint(tmp_path / "m", name)
    some = requests(**params)
    there = serve(folder, gpu.device, ahead=True)
    watched = Watched(there, gpu)
    ours, wanted = there.answers(some), serve(folder, CPU).answers(some)
    same(ours, wanted)
    assert watched.promised > len(some)
    for one, its in wanted.items():
        given = [entry.logprob for entry in (*ours[one].logprobs, *ours[one].prompt_logprobs)]
        both = (*its.logprobs, *its.prompt_logprobs)
        assert given == pytest.approx([entry.logprob for entry in both], abs=1e-4)


@pytest.mark.parametrize("params", [{}, DRAWN, SCORED], ids=["greedy", "drawn", "scored"])
def test_one_copy_in_and_one_wait_for_the_step_before(
    gpu: PretendGpu, tmp_path: Path, params: dict[str, object]
) -> None:
    """Promised tokens take a handful of launches, and nothing waits for the step that is launched;
    the first and the last call launch two steps and none.
    """
    folder = make_checkpoint(tmp_path / "m", "llama")
    some = [asked(f"{n}", [*SHARED[:20], n], **params) for n in range(4)]
    plain = steps_of(serve(folder, gpu.device), gpu, some)
    served = serve(folder, gpu.device, ahead=True)
    watched = Watched(served, gpu)
    ahead = steps_of(served, gpu, some)
    assert [step.copies for step in ahead] == [2, *[1] * (len(ahead) - 2), 0]
    assert {step.waits for step in ahead} == {1}
    assert watched.waits == 0
    assert watched.promised == len(some) * (COUNT - 1)
    assert ahead[3].launches <= plain[3].launches + 3


def test_what_top_p_can_not_draw_in_time(
    gpu: PretendGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its request is drawn later, from its last token on, and the law of slots holds."""
    monkeypatch.setattr("radixlm.runner.sampler.HEAD_OF_GPUS", 100)
    folder = make_checkpoint(tmp_path / "m", "llama")
    some = [*requests(temperature=1.5, top_p=0.9)[:3], asked("greedy", PROMPTS[3])]
    served = serve(folder, gpu.device, ahead=True)
    watched = Watched(served, gpu)
    same(served.answers(some), serve(folder, CPU).answers(some))
    assert watched.promised > 0
    assert 0 < served.core.scheduler.counters.retractions <= 6
    check(served.core.cache)


def test_what_fails_wastes_a_row_and_nobody_else_s(gpu: PretendGpu, tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "m", "llama")
    bad, good = asked("bad", [*SHARED, BROKEN, 8]), asked("good", [*SHARED, 9])
    served = serve(folder, gpu.device, ahead=True)
    inner = served.model.embedding  # type: ignore[attr-defined]

    def broken(token_ids: Tensor, out: Tensor | None = None) -> Tensor:
        rows = inner(token_ids, out)
        return rows.masked_fill((token_ids == BROKEN)[:, None], torch.nan)

    served.model.embedding = broken  # type: ignore[attr-defined]
    ours, wanted = served.answers([bad, good]), serve(folder, CPU).answers([good])
    same({name: its for name, its in ours.items() if name.startswith("good")}, wanted)
    failed = ours["bad.0"]
    assert (failed.finish_reason, failed.token_ids) == (FinishReason.ERROR, ())
    assert served.core.stats().leaks == 0
    check(served.core.cache)


def test_promised_tokens_come_after_what_a_recorded_step_reads(gpu: PretendGpu) -> None:
    """They are taken from the draws of their rows of the table, once the rest is there."""
    staging = staging_for(gpu.device)
    first = tuple(make_row([1, 2], table_row=row) for row in (3, 5))
    answers = StepAnswers(ScheduledBatch(first), (0, 1), (), 40, staging)
    answers.tokens = torch.tensor([30, 31]).to(gpu.device)
    memory = FixedMemory(4, 40, staging)
    rows = [make_row([1, 2], table_row=4), *first[::-1]]
    later = [replace(row, tokens=np.array([1, 2, 0]), start=2, promised=True) for row in rows]
    later[0] = rows[0]
    batch = ScheduledBatch(tuple(later))
    staging.begin()
    memory.begin()
    forward = ForwardBatch.from_scheduled(batch, memory)
    memory.send()
    forward.promise(batch, answers, staging)
    staging.send()
    assert forward.token_ids.tolist() == [2, 31, 30, 0]
