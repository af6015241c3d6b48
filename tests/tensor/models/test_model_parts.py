"""A model in parts gives the logits of the whole one: ranks are threads, and meet in memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from radixlm.core.errors import ConfigError
from radixlm.formats.gguf_file import GGUFFile
from radixlm.layers.split import Split
from radixlm.models import GGUFCheckpoint, load_config, load_model, open_checkpoint
from radixlm.models.cuts import Cut
from radixlm.models.parts import PartCheckpoint, check_parts, part_of
from radixlm.models.safetensors_files import CutCheckpoint
from radixlm.products.quantized import QuantizedWeight, from_mxfp4
from radixlm.products.quantizing import quantize
from radixlm.testing.gguf_writer import write_gguf
from radixlm.testing.quantized_folders import Recipe, quantize_folder, write_plain
from radixlm.testing.reference import (
    ARCHITECTURES,
    load_reference,
    make_checkpoint,
    reference_logits,
)
from tests.tensor.attention_cases import dense_for

CPU = torch.device("cpu")
QUICK = ("llama", "olmo2", "phi3", "cohere", "qwen2_moe", "gpt_oss", "deepseek_v3")
# Layers differ in their heads of keys.
UNPARTED = ("gemma4_text", "gemma4_unified_text", "mimo_v2_flash")


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


def logits_of_ranks(
    folder: Path,
    token_ids: list[int],
    size: int,
    opened: Callable[[Path], CutCheckpoint] = open_checkpoint,
) -> Tensor:
    """Rank 0's. folder: of the config, too."""
    meeting, whole = Meeting(size), load_config(folder)

    @torch.inference_mode()
    def run(rank: int) -> Tensor:
        split = meeting.split(rank, whole.vocab_size)
        model = load_model(
            opened(folder), whole, dtype=torch.float32, device=CPU, progress=False, split=split
        )
        rows = torch.arange(len(token_ids))
        return model.forward(torch.tensor(token_ids), rows, dense_for(model), rows)

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
            if name not in UNPARTED
        ),
        # Biases of all products; more ranks than heads of keys; heads that do not divide evenly.
        ("llama", 2, {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}),
        ("olmo2", 4, {"num_key_value_heads": 2}),
        ("qwen3", 2, {"num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 321}),
        ("stablelm", 2, {"qk_layernorm": True}),
        ("cohere", 2, {"use_qk_norm": True}),
        # Queries without latents of their own; heads that do not divide evenly.
        ("deepseek_v2", 2, {"q_lora_rank": None}),
        (
            "deepseek_v3",
            4,
            {"attention_bias": True, "num_attention_heads": 6, "num_key_value_heads": 6},
        ),
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


GROUPS = {"intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize("kind", ["pack-quantized", "gptq", "awq"])
def test_quantized_weights_are_cut_between_groups(tmp_path: Path, kind: Any) -> None:
    plain = make_checkpoint(tmp_path / "plain", "llama", **GROUPS)
    weights = quantize_folder(plain, tmp_path / "quantized", Recipe(kind))
    expected = reference_logits(
        load_reference(write_plain(plain, tmp_path / "whole", weights)), tokens(30)
    )
    found = logits_of_ranks(tmp_path / "quantized", tokens(30), 2)
    assert (found - expected).abs().max() <= 1e-3


def test_a_group_is_never_cut(tmp_path: Path) -> None:
    plain = make_checkpoint(tmp_path / "plain", "llama")  # 96 between the products: 48 are no 32
    quantize_folder(plain, tmp_path / "quantized", Recipe("gptq"))
    with pytest.raises(ConfigError, match=r"down_proj.weight' at \(0, 48\).* group of 32"):
        logits_of_ranks(tmp_path / "quantized", tokens(3), 2)


def test_gguf_files_are_cut(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "plain", "llama", **GROUPS)
    write_gguf(folder, tmp_path / "model.gguf", "F32")
    expected = reference_logits(load_reference(folder), tokens(30))
    found = logits_of_ranks(
        folder,
        tokens(30),
        2,
        lambda _: GGUFCheckpoint(
            GGUFFile(tmp_path / "model.gguf"), load_config(tmp_path / "model.gguf")
        ),
    )
    assert (found - expected).abs().max() <= 1e-4


@pytest.mark.parametrize("whole_rows", [True, False])
def test_cuts_of_codes_are_cuts_of_numbers(whole_rows: bool) -> None:
    draw = torch.Generator().manual_seed(0)
    blocks = torch.randint(0, 256, (8, 4, 16), dtype=torch.uint8, generator=draw)
    scales = torch.randint(122, 125, (8, 4), dtype=torch.uint8, generator=draw)
    weights = [from_mxfp4(blocks, scales), quantize(torch.randn(8, 128, generator=draw), bits=8)]
    cut = Cut(0, ((1, 3), (5, 6))) if whole_rows else Cut(1, ((32, 64), (96, 128)))
    for weight in weights:
        part = cut.of("it", weight)
        assert isinstance(part, QuantizedWeight)
        assert torch.equal(part.dequantized(), cut.of("it", weight.dequantized()))


class Recorded:
    """A checkpoint that notes how much is read of it."""

    is_quantized = False

    def __init__(self, folder: Path) -> None:
        self.where, self._its = str(folder), open_checkpoint(folder)
        self.whole: dict[str, int] = {}
        self.parts: dict[str, int] = {}

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        return self._its.shapes

    def read(self, name: str) -> Tensor | QuantizedWeight:
        return self._noted(self.whole, name, self._its.read(name))

    def read_cut(self, name: str, cut: Cut) -> Tensor | QuantizedWeight:
        return self._noted(self.parts, name, self._its.read_cut(name, cut))

    @staticmethod
    def _noted(notes: dict[str, int], name: str, weight: Any) -> Any:
        notes[name] = weight.numel()
        return weight


@pytest.mark.parametrize("architecture", ["qwen2_moe", "granitemoe", "gpt_oss", "phi3"])
def test_no_more_is_read_than_the_part(tmp_path: Path, architecture: str) -> None:
    folder = make_checkpoint(tmp_path, architecture)
    whole, meeting, read = load_config(folder), Meeting(2), []
    for rank in range(2):
        recorded = Recorded(folder)
        part = PartCheckpoint(recorded, whole, meeting.split(rank, whole.vocab_size))
        for name in part.shapes:
            part.read(name)
        read.append(recorded)
    sizes = {name: torch.Size(shape).numel() for name, shape in read[0].shapes.items()}
    for name, count in read[0].parts.items():
        assert count + read[1].parts[name] == sizes[name], name
    small = ("norm.weight", "gate.weight", "router.weight", "layer.weight", "bias")
    assert all(name.endswith(small) for each in read for name in each.whole)
    added_once = [name for name in read[0].whole if name not in read[1].whole]
    assert all(name.endswith("bias") for name in added_once)
    assert sum(read[0].parts.values()) > 0.4 * sum(sizes.values())


def refused(tmp_path: Path, architecture: str, size: int, **fields: Any) -> str:
    config = load_config(make_checkpoint(tmp_path, architecture, **fields))
    with pytest.raises(ConfigError) as found:
        check_parts(config, size)
    return str(found.value)


@pytest.mark.parametrize(
    ("architecture", "size", "fields", "said"),
    [
        ("llama", 3, {}, "--tp-size 3 does not fit the model's 4 heads (num_attention_heads)"),
        ("llama", 8, {}, "2 heads of keys (num_key_value_heads)"),
        ("llama", 2, {"intermediate_size": 97}, "--tp-size 2 does not divide the model's inter"),
        *((name, 2, {}, "--tp-size 2 is for models whose layers all have") for name in UNPARTED),
        ("deepseek_v2", 8, {}, "--tp-size 8 is more than the model's 4 heads"),
        ("qwen3_moe", 2, {"moe_intermediate_size": 33}, "moe_intermediate_size of 33"),
        ("qwen2_moe", 2, {"shared_expert_intermediate_size": 49}, "shared_expert_intermediate_si"),
    ],
)
def test_sizes_that_can_not_be(
    tmp_path: Path, architecture: str, size: int, fields: dict[str, Any], said: str
) -> None:
    assert said in refused(tmp_path, architecture, size, **fields)


def test_parts_make_the_whole(tmp_path: Path) -> None:
    fields = {"num_attention_heads": 6, "num_key_value_heads": 3, "vocab_size": 321}
    config = load_config(make_checkpoint(tmp_path, "qwen3", **fields))
    parts = [part_of(config, rank, 2) for rank in range(2)]
    assert [(part.n_heads, part.n_kv_heads) for part in parts] == [(2, 1), (4, 2)]
    assert sum(part.vocab_size for part in parts) == 321
