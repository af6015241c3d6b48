"""Two ranks of a model on the pretended GPU, in two threads; gloo adds what lies in its memory."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue

import torch
from torch import Tensor

from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.layers.split import Split
from radixlm.runner.rank_group import RankGroup
from tests.pretend_gpu import PretendGpu, PretendTensor
from tests.tensor.test_pretend_gpu import CPU, Served, serve


class PretendGroup(RankGroup):
    """Ranks whose tensors are on the pretended GPU."""

    def reduce(self, tensor: Tensor) -> None:
        super().reduce(_held(tensor))

    def gather(self, part: Tensor, widths: Sequence[int]) -> Tensor:
        made = super().gather(_held(part), widths)
        whole = part.new_empty(made.shape)
        _held(whole).copy_(made)
        return whole


def _held(tensor: Tensor) -> Tensor:
    assert isinstance(tensor, PretendTensor)
    return tensor.held


@contextmanager
def two_ranks(folder: Path, gpu: PretendGpu) -> Iterator[Served]:
    """Serve by both; what rank 0 asks for is counted, and it has the answers."""
    vocab = json.loads((folder / "config.json").read_text())["vocab_size"]
    groups = [PretendGroup(rank, 2, CPU) for rank in range(2)]
    first, second = (
        serve(folder, gpu.device, split=Split(its.rank, 2, vocab, its.reduce, its.gather))
        for its in groups
    )
    steps, execute = SimpleQueue[ScheduledBatch | None](), first.runner.execute

    def follow() -> None:
        groups[1].join(Path(at))
        with torch.inference_mode(), PretendGpu(gpu.device):
            while (batch := steps.get()) is not None:
                second.runner.compute(batch)

    def lead(batch: ScheduledBatch) -> StepResult:
        steps.put(batch)
        return execute(batch)

    first.runner.execute = lead  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory() as at:
        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        groups[0].join(Path(at))
        yield first
        steps.put(None)
        thread.join()
