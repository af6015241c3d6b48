"""Tokens and log-probabilities that the rows of a step ask for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from radixlm.core.batch import ScheduledBatch, ScheduledRow
from radixlm.core.sampling import SamplingParams
from radixlm.memory.staging import Sending, staging_for
from radixlm.runner import step_answers
from radixlm.runner.step_answers import StepAnswers
from tests.pretend_gpu import PretendGpu
from tests.tensor.rows import make_row
from tests.tensor.sampling_cases import random_logits

VOCAB = 40
# What is known, what is drafted after it, and the sibling's tokens in place of the last two.
KNOWN, DRAFT, SIBLING = [1, 2, 3], [4, 5, 6], [7, 8]


def with_sibling(logprobs: int | None, table_row: int = 0) -> ScheduledRow:
    params = SamplingParams(temperature=0, logprobs=logprobs)
    row = make_row([*KNOWN, *DRAFT], start=2, prompt=KNOWN, params=params, table_row=table_row)
    tokens = [*KNOWN, DRAFT[0], *SIBLING]
    its = make_row(tokens, start=4, prompt=KNOWN, params=params, table_row=9)
    return replace(row, drafted=3, sibling=replace(its, beside=table_row, drafted=1, remaps=()))


def logits_of(drawn: list[int]) -> Tensor:
    """Logits of which these tokens are the largest."""
    made = random_logits(len(drawn), seed=2, vocab=VOCAB)
    made[range(len(drawn)), drawn] = made.amax() + 1
    return made


# What is drawn of the draft and of its sibling; which of these count, by their places.
CASES = {
    "the draft": ([4, 5, 6, 9, 11, 12], [0, 1, 2, 3]),
    "its sibling": ([4, 7, 10, 10, 8, 12], [0, 1, 4, 5]),
    "a part of its sibling": ([4, 7, 10, 10, 13, 12], [0, 1, 4]),
    "none of both": ([4, 14, 10, 10, 8, 12], [0, 1]),
}


def asked(its: str, sending: Sending, device: torch.device) -> tuple[StepAnswers, Tensor]:
    """Of three rows: one with a sibling, a plain one, and one with a sibling that asks for none."""
    drawn, _ = CASES[its]
    plain = make_row([1, 2], params=SamplingParams(temperature=0, logprobs=1), table_row=1)
    rows = with_sibling(2), plain, with_sibling(None, 2)
    answers = StepAnswers(ScheduledBatch(rows), (0, 1, 2), (), VOCAB, sending)
    return answers, logits_of([*drawn, 3, *drawn]).to(device)


def check(its: str, answers: StepAnswers, logits: Tensor) -> None:
    drawn, path = CASES[its]
    answers.ask(logits)
    taken, logprobs, prompts, flat = answers.read()
    assert not flat
    told = tuple(drawn[at] for at in path)
    assert taken == {0: told, 1: (3,), 2: told}
    assert {*logprobs} == {0, 1}
    assert prompts == {}
    wanted = logits.cpu().log_softmax(-1)
    rows = [*zip(path, logprobs[0], strict=True), (6, logprobs[1][0])]
    for at, entry in rows:
        assert entry.token == [*drawn, 3][at]
        assert entry.logprob == pytest.approx(float(wanted[at, entry.token]))
        best = wanted[at].sort(descending=True)
        ids, values = best.indices[: len(entry.top)], best.values[: len(entry.top)]
        assert [token for token, _ in entry.top] == ids.tolist()
        assert [value for _, value in entry.top] == pytest.approx(values.tolist())
    assert [len(entry.top) for _, entry in rows] == [2] * len(path) + [1]


@pytest.mark.parametrize("its", CASES)
def test_of_a_draft_and_its_sibling_what_counts_has_log_probabilities(its: str) -> None:
    check(its, *asked(its, Sending(torch.device("cpu")), torch.device("cpu")))


@pytest.mark.parametrize("its", CASES)
def test_on_a_gpu_by_one_copy(gpu: PretendGpu, its: str) -> None:
    staging = staging_for(gpu.device)
    staging.begin()
    answers, logits = asked(its, staging, gpu.device)
    staging.send()
    gpu.count()
    answers.ask(logits)
    assert (gpu.counts.copies, gpu.counts.waits) == (0, 0)
    answers.read()
    counts = gpu.count()
    assert (counts.copies, counts.waits) == (0, 1)
    check(its, answers, logits)


def test_on_a_cpu_nothing_is_computed_of_what_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows = []
    compute = step_answers.logprobs_of

    def counted(logits: Tensor, targets: Tensor, most: int) -> Tensor:
        rows.append(len(logits))
        return compute(logits, targets, most)

    monkeypatch.setattr(step_answers, "logprobs_of", counted)
    cpu = torch.device("cpu")
    check("none of both", *asked("none of both", Sending(cpu), cpu))
    assert rows == [3]


def test_what_is_swapped_counts_with_its_own_log_probability() -> None:
    cpu = torch.device("cpu")
    answers, logits = asked("none of both", Sending(cpu), cpu)
    instead = [*CASES["its sibling"][0], 5, *CASES["the draft"][0]]
    answers.ask(logits)
    taken, logprobs, _, _ = answers.read(lambda _rows, _drawn: [*instead])
    assert taken == {0: (4, 7, 8, 12), 1: (5,), 2: (4, 5, 6, 9)}
    wanted = logits.log_softmax(-1)
    assert [entry.logprob for entry in logprobs[0]] == pytest.approx(
        [float(wanted[at, token]) for at, token in zip((0, 1, 4, 5), taken[0], strict=True)]
    )
    assert np.isclose(logprobs[1][0].logprob, float(wanted[6, 5]))
