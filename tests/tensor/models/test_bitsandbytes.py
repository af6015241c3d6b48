"""Folders as bitsandbytes writes them, in 4 and 8 bits, by the format's own rules."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from radixlm.core.errors import ModelError
from radixlm.models import open_checkpoint
from radixlm.products.gemm_choice import one_way
from radixlm.products.quantized import LEVELS
from radixlm.testing.quantized_folders import set_section, write_plain
from radixlm.testing.reference import load_reference, make_checkpoint, reference_logits
from tests.quantized_checks import check_weights, load, logits

Parts = dict[str, Tensor]
TOKENS = list(range(3, 60))
UP = "model.layers.1.mlp.up_proj.weight"
STATE = f"{UP}.quant_state.bitsandbytes__nf4"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sizes of which one is no whole number of blocks of 64."""
    folder = tmp_path_factory.mktemp("plain") / "qwen3"
    return make_checkpoint(folder, "qwen3", hidden_size=96, intermediate_size=320, head_dim=32)


def in_8_bits(weight: Tensor) -> tuple[Parts, Tensor]:
    most = weight.abs().amax(1)
    codes = (weight * 127 / most[:, None]).round().to(torch.int8)
    parts = {"weight": codes, "SCB": most, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return parts, codes.float() * (most / 127)[:, None]


def in_4_bits(weight: Tensor, kind: str, block: int, *, nested: bool) -> tuple[Parts, Tensor]:
    levels = torch.tensor(LEVELS[kind])
    count = weight.numel()
    row = torch.nn.functional.pad(weight.flatten(), (0, -count % block)).view(-1, block)
    scales = row.abs().amax(1)
    state: dict[str, Any] = {
        "quant_type": kind,
        "blocksize": block,
        "dtype": "float32",
        "shape": list(weight.shape),
    }
    stored = {"quant_map": levels, "absmax": scales}
    if nested:
        offset = scales.mean().item()
        outer = (scales - offset).abs().max().view(1)
        table = torch.linspace(-1, 1, 256)
        codes = ((scales - offset)[:, None] / outer - table).abs().argmin(1)
        scales = table[codes] * outer + offset
        stored["absmax"] = codes.to(torch.uint8)
        stored |= {"nested_absmax": outer, "nested_quant_map": table}
        state |= {"nested_blocksize": 1 << 20, "nested_dtype": "float32", "nested_offset": offset}
    codes = (row[:, :, None] / scales[:, None, None] - levels).abs().argmin(2)
    made = (levels[codes] * scales[:, None]).flatten()[:count].view(weight.shape)
    pairs = codes.flatten()[:count].view(-1, 2)
    stored[f"quant_state.bitsandbytes__{kind}"] = torch.tensor(list(json.dumps(state).encode()))
    parts = {f"weight.{name}": value for name, value in stored.items()}
    state_part = f"weight.quant_state.bitsandbytes__{kind}"
    parts[state_part] = parts[state_part].to(torch.uint8)
    return parts | {"weight": (pairs[:, :1] << 4 | pairs[:, 1:]).to(torch.uint8)}, made


KINDS: dict[str, Callable[[Tensor], tuple[Parts, Tensor]]] = {
    "int8": in_8_bits,
    "nf4": lambda weight: in_4_bits(weight, "nf4", 64, nested=False),
    "nf4 nested": lambda weight: in_4_bits(weight, "nf4", 64, nested=True),
    "fp4, large blocks": lambda weight: in_4_bits(weight, "fp4", 4096, nested=True),
}


def quantized(plain: Path, folder: Path, kind: str) -> Parts:
    """Write `plain` quantized; returns the weights that the folder stands for."""
    shutil.copytree(plain, folder)
    stored, whole = {}, {}
    for name, tensor in load_file(plain / "model.safetensors").items():
        stored[name] = whole[name] = tensor
        if name.endswith("_proj.weight"):
            module = name.removesuffix("weight")
            parts, whole[name] = KINDS[kind](tensor.float())
            stored |= {module + part: value.contiguous() for part, value in parts.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    is_int8 = kind == "int8"
    section = {"quant_method": "bitsandbytes", "bnb_4bit_quant_type": kind[:3]}
    set_section(folder, section | {"load_in_8bit": is_int8, "load_in_4bit": not is_int8})
    return whole


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_those_of_the_format(plain: Path, tmp_path: Path, kind: str) -> None:
    whole = quantized(plain, tmp_path / "q", kind)
    check_weights(tmp_path / "q", whole)


def test_answers_are_those_of_the_weights(plain: Path, tmp_path: Path) -> None:
    whole = quantized(plain, tmp_path / "q", "nf4 nested")
    reference = load_reference(write_plain(plain, tmp_path / "whole", whole))
    found = logits(load(tmp_path / "q", one_way), TOKENS)
    assert (found - reference_logits(reference, TOKENS)).abs().max() <= 1e-3


def state_with(**fields: object) -> Callable[[Parts], None]:
    def edit(parts: Parts) -> None:
        state = json.loads(bytes(parts[STATE].tolist())) | fields
        parts[STATE] = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)

    return edit


def put(part: str, value: Tensor | None) -> Callable[[Parts], None]:
    def edit(parts: Parts) -> None:
        del parts[UP + part]
        if value is not None:
            parts[UP + part] = value

    return edit


NOT_JSON = torch.full((8,), 200, dtype=torch.uint8)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (put(".absmax", None), r"up_proj\.weight\.absmax' is missing"),
        (put(".absmax", torch.ones(480)), "absmax' is of type F32; supported: U8"),
        (put(".nested_quant_map", torch.ones(255)), r"has shape \(255,\)"),
        (put(".quant_map", torch.ones(16)), "quant_map of tensor .* is not nf4's"),
        (put(".nested_absmax", torch.full((1,), torch.nan)), "not all finite"),
        (put(STATE.removeprefix(UP), NOT_JSON), "not readable JSON"),
        (put(STATE.removeprefix(UP), None), "up_proj.* is of type U8, and no part"),
        (state_with(shape=[1 << 30, 1 << 30]), "has shape"),
        (state_with(shape=[96]), "shape'.*two sizes"),
        (state_with(blocksize=0), "blocksize'.*a positive integer"),
        (state_with(blocksize=1 << 30), "has shape"),
    ],
)
def test_damaged_folders_are_errors(
    plain: Path, tmp_path: Path, edit: Callable[[Parts], None], message: str
) -> None:
    quantized(plain, tmp_path / "q", "nf4 nested")
    parts = load_file(tmp_path / "q/model.safetensors")
    edit(parts)
    save_file(parts, tmp_path / "q/model.safetensors")
    with pytest.raises(ModelError, match=message):
        open_checkpoint(tmp_path / "q").read(UP)


def test_int8_by_columns_is_refused(plain: Path, tmp_path: Path) -> None:
    quantized(plain, tmp_path / "q", "int8")
    parts = load_file(tmp_path / "q/model.safetensors")
    parts[f"{UP}_format"].fill_(1)
    save_file(parts, tmp_path / "q/model.safetensors")
    with pytest.raises(ModelError, match="not stored by rows"):
        open_checkpoint(tmp_path / "q").read(UP)
