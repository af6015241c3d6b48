"""The whole tensor side with a real (tiny, random) model, against transformers."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from radixlm.core.batch import ScheduledBatch, ScheduledRow, StepResult, TokenMasks
from radixlm.core.sampling import SamplingParams
from radixlm.memory.pools import KVPool, ReqToTokenPool
from radixlm.models import CausalLM, PlainCheckpoint, load_config, load_model
from radixlm.runner import ModelRunner
from radixlm.testing.reference import load_reference, make_checkpoint, reference_logits
from tests.tensor.rows import make_row

VOCAB = 300


class Reference:
    """Logits of transformers for a whole sequence."""

    def __init__(self, folder: Path) -> None:
        self._model = load_reference(folder)

    def logits(self, tokens: list[int]) -> Tensor:
        return reference_logits(self._model, tokens)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("runner"), "llama")


@pytest.fixture(scope="module")
def reference(folder: Path) -> Reference:
    return Reference(folder)


@pytest.fixture(scope="module")
def model(folder: Path) -> CausalLM:
    config = load_config(folder)
    cpu = torch.device("cpu")
    checkpoint = PlainCheckpoint(folder)
    return load_model(checkpoint, config, dtype=torch.float32, device=cpu, progress=False)


@pytest.fixture
def runner(model: CausalLM) -> ModelRunner:
    config = model.config
    pool = KVPool(config.n_layers, 500, config.n_kv_heads, config.head_dim, torch.float32)
    return ModelRunner(model, pool, ReqToTokenPool(4, 120))


def prompt(n: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(0, VOCAB, n).tolist()


def step(runner: ModelRunner, *rows: ScheduledRow) -> StepResult:
    return runner.execute(ScheduledBatch(tuple(rows)))


def greedy(**more: int) -> SamplingParams:
    return SamplingParams(temperature=0, **more)


@pytest.mark.parametrize("scattered", [False, True])
def test_chunks_and_decodes_in_one_batch_give_the_reference_tokens(
    runner: ModelRunner, reference: Reference, scattered: bool
) -> None:
    """Three requests with chunks of 5, 16 and 40 tokens: they decode while others still chunk."""
    prompts = [prompt(37, 0), prompt(9, 1), prompt(40, 2)]
    budgets = [5, 16, 40]
    places = np.random.default_rng(0).permutation(500) if scattered else np.arange(500)
    tokens = [list(ids) for ids in prompts]
    computed = [0, 0, 0]
    while any(len(t) - len(p) < 10 for t, p in zip(tokens, prompts, strict=True)):
        rows = []
        for i, budget in enumerate(budgets):
            stop = min(computed[i] + budget, len(tokens[i]))
            row = make_row(
                tokens[i][:stop],
                slots=places[i * 150 :][:stop],
                start=computed[i],
                table_row=i,
                prompt=prompts[i],
                params=greedy(),
                samples=stop == len(tokens[i]),
            )
            rows.append(row)
            computed[i] = stop
        for i, (row, token) in enumerate(zip(rows, step(runner, *rows).tokens, strict=True)):
            assert (token is not None) == row.samples
            if token is not None:
                tokens[i].append(token)
    for ids, own in zip(tokens, prompts, strict=True):
        wanted = reference.logits(ids).argmax(-1).tolist()
        assert ids[len(own) :] == wanted[len(own) - 1 : -1]


def test_a_step_is_computed_on_the_device_of_its_memory(
    runner: ModelRunner, model: CausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triton launches on the thread's own device, whatever its tensors are on."""
    entered: list[Tensor] = []

    @contextmanager
    def device_of(tensor: Tensor) -> Iterator[None]:
        entered.append(tensor)
        yield
        entered.pop()

    def forward(*given: object) -> Tensor:
        assert [each.dtype for each in entered] == [torch.int32]
        return CausalLM.forward(model, *given)

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    monkeypatch.setattr(model, "forward", forward)
    step(runner, make_row(prompt(5, 3), start=0, params=greedy()))
    assert not entered


def test_a_cached_prefix_arrives_as_a_remap(runner: ModelRunner, reference: Reference) -> None:
    shared, first, second = prompt(20, 3), prompt(6, 4), prompt(8, 5)
    step(runner, make_row(shared + first, start=0, params=greedy(), table_row=0))
    slots = [*range(20), *range(100, 108)]
    row = make_row(shared + second, slots=slots, start=20, params=greedy(), table_row=1)
    assert step(runner, row).tokens == (int(reference.logits(shared + second)[-1].argmax()),)


def test_prompt_logprobs_cross_chunk_ends(runner: ModelRunner, reference: Reference) -> None:
    ids = prompt(23, 6)
    wanted = reference.logits(ids).log_softmax(-1)
    entries = []
    for start, stop in ((0, 10), (10, 11), (11, 23)):
        row = make_row(
            ids[:stop],
            start=start,
            prompt=ids,
            params=greedy(prompt_logprobs=2),
            samples=stop == 23,
        )
        other = make_row(prompt(4, 7), slots=range(50, 54), start=0, table_row=1, params=greedy())
        entries += step(runner, other, row).prompt_logprobs[1]
    assert [entry.token for entry in entries] == ids[1:]
    for position, entry in enumerate(entries):
        assert entry.logprob == pytest.approx(wanted[position, ids[position + 1]].item(), abs=1e-4)
        assert [t for t, _ in entry.top] == wanted[position].topk(2).indices.tolist()


def test_logprobs_are_of_the_unfiltered_distribution(
    runner: ModelRunner, reference: Reference
) -> None:
    ids = prompt(12, 8)
    params = SamplingParams(temperature=0.3, top_k=2, logit_bias={5: 50.0}, logprobs=3)
    plain = make_row(prompt(5, 9), slots=range(50, 55), start=0, table_row=1, params=greedy())
    result = step(runner, plain, make_row(ids, start=0, params=params))
    assert list(result.logprobs) == [1]
    [entry] = result.logprobs[1]
    wanted = reference.logits(ids)[-1].log_softmax(-1)
    assert entry.token == result.tokens[1]
    assert entry.logprob == pytest.approx(wanted[entry.token].item(), abs=1e-4)
    assert [t for t, _ in entry.top] == wanted.topk(3).indices.tolist()


def test_logprobs_are_of_what_a_mask_forbids_too(runner: ModelRunner, reference: Reference) -> None:
    ids = prompt(12, 8)
    bits: Future[npt.NDArray[np.int32]] = Future()
    bits.set_result(np.array([[0, 1, *[0] * 8]], dtype=np.int32))
    batch = ScheduledBatch(
        (make_row(ids, start=0, params=SamplingParams(temperature=0, logprobs=3)),),
        TokenMasks((0,), bits),
    )
    result = runner.execute(batch)
    assert result.tokens == (32,)
    wanted = reference.logits(ids)[-1].log_softmax(-1)
    [entry] = result.logprobs[0]
    assert [t for t, _ in entry.top] == wanted.topk(3).indices.tolist()


def test_a_step_in_which_nobody_samples(runner: ModelRunner) -> None:
    result = step(runner, make_row(prompt(8, 1)[:5], start=0, prompt=prompt(8, 1), samples=False))
    assert result.tokens == (None,)
    assert not result.logprobs
    assert not result.prompt_logprobs


def test_an_empty_batch(runner: ModelRunner) -> None:
    assert step(runner).tokens == ()
