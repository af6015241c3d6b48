"""A model in parts gives the logits of the whole one: ranks are threads, and meet in memory."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from radixlm.layers.split import Split
from radixlm.models import load_config, load_model, open_checkpoint
from radixlm.testing.reference import (
    ARCHITECTURES,
    load_reference,
    make_checkpoint,
    reference_logits,
)
from tests.tensor.attention_cases import DenseAttend

CPU = torch.device("cpu")
QUICK = ("llama", "olmo2", "phi3", "cohere", "qwen2_moe", "gpt_oss")


class Meeting:
    """What ranks that are threads give each other."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.barrier = threading.Barrier(size, timeout=60)
        self.given: list[Tensor] = [torch.empty(0)] * size

    def split(self, rank: int, vocab_size: int) -> Split:
        def reduce(tensor: Tensor) -> None:
            tensor.copy_(sum(self.exchanged(rank, tensor), torch.zeros_like(tensor)))

        def gather(part: Tensor, widths: Sequence[int]) -> Tensor:
            parts = self.exchanged(rank, part)
            assert [each.shape[1] for each in parts] == list(widths)
            return torch.cat(parts, 1) if rank == 0 else part

        return Split(rank, self.size, vocab_size, reduce, gather)

    def exchanged(self, rank: int, tensor: Tensor) -> list[Tensor]:
        self.given[rank] = tensor.clone()  # which its model may go on with
        self.barrier.wait()
        parts = list(self.given)
        self.barrier.wait()
        return parts


def logits_of_ranks(folder: Path, token_ids: list[int], size: int) -> Tensor:
    """Rank 0's."""
    meeting, whole = Meeting(size), load_config(folder)

    @torch.inference_mode()
    def run(rank: int) -> Tensor:
        split = meeting.split(rank, whole.vocab_size)
        checkpoint = open_checkpoint(folder)
        model = load_model(
            checkpoint, whole, dtype=torch.float32, device=CPU, progress=False, split=split
        )
        config, rows = model.config, torch.arange(len(token_ids))
        attend = DenseAttend(config.n_kv_heads, config.windows, config.traits.score_cap)
        return model.forward(torch.tensor(token_ids), rows, attend, rows)

    with ThreadPoolExecutor(size) as pool:
        first, *_ = pool.map(run, range(size))
        return first


def tokens(n: int) -> list[int]:
    return torch.randint(0, 320, (n,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.mark.parametrize(
    ("architecture", "size", "overrides"),
    [
        *(
            pytest.param(name, 2, {}, marks=[] if name in QUICK else pytest.mark.slow)
            for name in ARCHITECTURES
        ),
        # Biases of all products; more ranks than heads of keys; heads that do not divide evenly.
        ("llama", 2, {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("olmo2", 4, {"num_key_value_heads": 2}),
        ("qwen3", 2, {"num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 321}),
        ("stablelm", 2, {"qk_layernorm": True}),
        ("cohere", 2, {"use_qk_norm": True}),
    ],
)
def test_logits_equal_transformers(
    tmp_path: Path, architecture: str, size: int, overrides: dict[str, Any]
) -> None:
    folder = make_checkpoint(tmp_path, architecture, **overrides)
    token_ids = tokens(60)
    expected = reference_logits(load_reference(folder), token_ids)
    assert (logits_of_ranks(folder, token_ids, size) - expected).abs().max() <= 1e-4
    assert expected.argmax(-1).unique().numel() > 10, "the reference says the same all the time"
