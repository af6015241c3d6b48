"""Attention on a device that pretends to be a GPU: what it gives, and asks of the device."""

from __future__ import annotations

import pytest
import torch

from radixlm.attention import torch_parts, torch_reads
from radixlm.attention.plan import make_plan
from radixlm.attention.torch_backend import TorchBackend
from radixlm.attention.torch_parts import attend_all
from radixlm.memory.pools import KVPool
from scripts.gpu_check.steps import Step
from tests.pretend_gpu import PretendGpu
from tests.tensor.attention_cases import (
    BACKENDS,
    EVERYTHING,
    KINDS,
    Heads,
    Path,
    make_tree_case,
    reference,
    run,
    worst_in_trees,
)

HEADS = Heads(6, 2, 16)


@pytest.mark.parametrize("kind", KINDS)
def test_attention_is_the_reference_s(gpu: PretendGpu, kind: str) -> None:
    assert worst_in_trees(kind, torch.float32, gpu.device) < 5e-6


def test_what_rows_read_together_takes_few_copies(gpu: PretendGpu) -> None:
    counts = []
    for leaves in (2, 8):
        paths = [Path(((node, 20), (10 + node, 9)), 3, 1) for node in range(leaves) for _ in "ab"]
        case = make_tree_case(paths, HEADS, torch.float32, gpu.device, seed=0, page=1)
        plan = make_plan(case.rows, EVERYTHING)
        assert len(plan.shared) == leaves
        gpu.count()
        BACKENDS["torch"](case.pool, HEADS.n_heads).prepare(plan, case.table, case.slots)
        counts.append(gpu.count().copies)
    assert counts == [2, 2]


@pytest.mark.parametrize("kind", ["plain", "cap", "sinks"])
def test_scores_of_a_long_chunk_are_never_all_written_out(
    gpu: PretendGpu, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Beside rows that read with others; 3 million scores."""
    for module in (torch_parts, torch_reads):
        monkeypatch.setattr(module, "MOST_SCORES", 250_000)
    beside = {
        "plain": {},
        "cap": {"cap": 1.5},
        "sinks": {"sinks": torch.tensor([-1.0, 0.5, 4.0, 40.0, 3.0, 0.0], device=gpu.device)},
    }[kind]
    paths = [Path(((0, 20),), 3, 1), Path(((0, 20),), 5, 1), Path((), 300, 600)]
    case = make_tree_case(paths, HEADS, torch.float32, gpu.device, seed=0, page=1)
    assert make_plan(case.rows, EVERYTHING).shared
    gpu.count()
    with torch.inference_mode():  # in which torch's own kernel is one call
        out = run(case, EVERYTHING, **beside)
    assert gpu.count().largest <= 250_000
    assert (out.double() - reference(case, **beside)).abs().max().item() < 5e-6


@pytest.mark.parametrize(
    ("step", "pays"),
    [
        (Step("a GPU waits for its host", 64, 1_050, shared=1_000), False),
        (Step("it has much to read", 256, 4_224, shared=4_096), True),
        (Step("chunks, which read it once each", 64, 4_096, 64, shared=4_096), False),
    ],
    ids=lambda value: value.name if isinstance(value, Step) else "",
)
def test_rows_read_together_what_takes_longer_than_calls(
    gpu: PretendGpu, step: Step, pays: bool
) -> None:
    backend = TorchBackend(KVPool(1, 4, 8, 128, torch.bfloat16, gpu.device), 16)
    assert bool(make_plan(step.batch(begins=False).rows, backend.sharing).shared) == pays


def test_a_shared_read_takes_as_many_calls_whatever_its_length(gpu: PretendGpu) -> None:
    counts = []
    for tokens in (40, 2_051):
        q, keys = (torch.randn(2, size, 8) for size in (5, tokens))
        here = attend_all(q, keys.transpose(0, 1), keys.transpose(0, 1))
        q, keys = q.to(gpu.device), keys.transpose(0, 1).to(gpu.device)
        gpu.count()
        there = attend_all(q, keys, keys)
        counts.append(gpu.count().launches)
        for ours, wanted in zip(there, here, strict=True):
            assert torch.allclose(ours.cpu(), wanted, atol=1e-5)
    assert counts[0] == counts[1] <= 10


def test_cudnn_s_attention_is_off_on_a_gpu(gpu: PretendGpu) -> None:
    torch.backends.cuda.enable_cudnn_sdp(True)
    TorchBackend(KVPool(1, 4, 1, 8, torch.float32), 1)
    assert torch.backends.cuda.cudnn_sdp_enabled()
    TorchBackend(KVPool(1, 4, 1, 8, torch.float32, gpu.device), 1)
    assert not torch.backends.cuda.cudnn_sdp_enabled()
