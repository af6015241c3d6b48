"""Small checkpoints as compressed-tensors, GPTQ, AWQ and gpt-oss (MXFP4) store them, written by the
formats' own rules and by none of our readers' code.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

# Which column stands in each place of a word, the lowest bits first.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
_WEIGHTS = "model.safetensors"
# What a code of MXFP4 stands for; with its highest bit, the negative one.
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
_EXPERTS = ("gate_up_proj", "down_proj")
_Numbers = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Recipe:
    """group: inputs of a scale; 0: all of a row; -1: all of a weight."""

    format: Literal["pack-quantized", "int-quantized", "naive-quantized", "gptq", "gptq_v2", "awq"]
    bits: int = 4
    group: int = 32
    symmetric: bool = True

    @property
    def section(self) -> dict[str, Any]:
        """`quantization_config` of such a folder."""
        if self.format == "awq":
            return {
                "quant_method": "awq",
                "bits": self.bits,
                "group_size": self.group or -1,
                "zero_point": not self.symmetric,
                "version": "gemm",
                "modules_to_not_convert": ["lm_head"],
            }
        if self.format in ("gptq", "gptq_v2"):
            return {
                "quant_method": "gptq",
                "bits": self.bits,
                "group_size": self.group or -1,
                "sym": self.symmetric,
                "desc_act": False,
                "checkpoint_format": self.format,
            }
        return self._compressed_tensors()

    def _compressed_tensors(self) -> dict[str, Any]:
        strategy = {0: "channel", -1: "tensor"}.get(self.group, "group")
        weights = {
            "num_bits": self.bits,
            "type": "int",
            "symmetric": self.symmetric,
            "strategy": strategy,
            "group_size": self.group if strategy == "group" else None,
            "dynamic": False,
            "actorder": None,
        }
        group: dict[str, Any] = {"targets": ["Linear"], "weights": weights, "format": self.format}
        if self.format == "int-quantized":
            inputs = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "token"}
            group["input_activations"] = {**inputs, "dynamic": True}
        return {
            "quant_method": "compressed-tensors",
            "format": self.format,
            "config_groups": {"group_0": group},
            "ignore": ["lm_head"],
            "quantization_status": "compressed",
        }


@dataclass(frozen=True, slots=True)
class Rounded:
    """codes: (out, in), from 0; scales: (out, groups) float16; zero_points: (out, groups)."""

    codes: _Numbers
    scales: NDArray[np.float16]
    zero_points: _Numbers

    def whole(self) -> Tensor:
        """(out, in) float32, without rounding: products of float16 and a small integer."""
        each = self.codes.shape[1] // self.scales.shape[1]
        points = self.zero_points.astype(np.float32).repeat(each, axis=1)
        scales = self.scales.astype(np.float32).repeat(each, axis=1)
        return torch.from_numpy(scales * (self.codes - points))


def rounded(weight: NDArray[np.float32], recipe: Recipe) -> Rounded:
    """(out, in) to the nearest codes."""
    outputs, inputs = weight.shape
    most, middle = (1 << recipe.bits) - 1, 1 << (recipe.bits - 1)
    each = recipe.group if recipe.group > 0 else inputs
    parts = weight.reshape(outputs, inputs // each, each)
    low = np.minimum(parts.min(axis=2), 0)
    high = np.maximum(parts.max(axis=2), 0)
    if recipe.group < 0:
        low, high = np.full_like(low, low.min()), np.full_like(high, high.max())
    if recipe.symmetric:
        scales = (np.maximum(-low, high) / (middle - 1)).astype(np.float16)
        points = np.full(scales.shape, middle, dtype=np.uint8)
    else:
        scales = ((high - low) / most).astype(np.float16)
        points = np.rint(-low / scales.astype(np.float32)).clip(0, most).astype(np.uint8)
    steps = np.rint(parts / scales.astype(np.float32)[:, :, None]) + points[:, :, None]
    codes = steps.clip(0, most).astype(np.uint8).reshape(outputs, inputs)
    return Rounded(codes, scales, points)


def quantize_folder(plain: Path, folder: Path, recipe: Recipe) -> dict[str, Tensor]:
    """Write `plain` with the layers' products quantized. Returns the weights that the folder stands
    for, by transformers' names.
    """
    shutil.copytree(plain, folder)
    stored: dict[str, Tensor] = {}
    whole: dict[str, Tensor] = {}
    for name, tensor in load_file(plain / _WEIGHTS).items():
        if not name.endswith("_proj.weight"):
            stored[name] = whole[name] = tensor
            continue
        made = rounded(tensor.float().numpy(), recipe)
        whole[name] = made.whole()
        module = name.removesuffix("weight")
        stored |= {f"{module}{part}": value for part, value in parts_of(made, recipe).items()}
    save_file(stored, folder / _WEIGHTS, metadata={"format": "pt"})
    set_section(folder, recipe.section)
    return whole


def write_mxfp4(plain: Path, folder: Path) -> dict[str, Tensor]:
    """Write `plain`, of gpt-oss, with random experts in MXFP4. Returns the weights that the folder
    stands for, by transformers' names.
    """
    shutil.copytree(plain, folder)
    stored: dict[str, Tensor] = {}
    whole: dict[str, Tensor] = {}
    levels = torch.tensor([sign * level for sign in (1, -1) for level in _E2M1])
    generator = torch.Generator().manual_seed(0)
    for name, tensor in load_file(plain / _WEIGHTS).items():
        if not name.endswith(_EXPERTS):
            stored[name] = whole[name] = tensor
            continue
        experts, inputs, outputs = tensor.shape
        shape = (experts, outputs, inputs // 32)
        blocks = torch.randint(0, 256, (*shape, 16), dtype=torch.uint8, generator=generator)
        scales = torch.randint(122, 125, shape, dtype=torch.uint8, generator=generator)
        stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        codes = torch.stack([blocks & 15, blocks >> 4], dim=-1).flatten(3).long()
        made = levels[codes] * torch.exp2(scales.float() - 127)[..., None]
        whole[name] = made.flatten(2).transpose(1, 2).contiguous()
    save_file(stored, folder / _WEIGHTS, metadata={"format": "pt"})
    set_section(folder, {"quant_method": "mxfp4", "modules_to_not_convert": []})
    return whole


def write_plain(plain: Path, folder: Path, weights: Mapping[str, Tensor]) -> Path:
    """`plain` with other weights."""
    shutil.copytree(plain, folder)
    save_file(dict(weights), folder / _WEIGHTS, metadata={"format": "pt"})
    return folder


def set_section(folder: Path, section: object) -> None:
    """Give a folder's config.json a `quantization_config`."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"quantization_config": section}
    path.write_text(json.dumps(config))


def parts_of(made: Rounded, recipe: Recipe) -> dict[str, Tensor]:
    """The tensors of a weight, by the names of its parts."""
    scales = torch.from_numpy(made.scales)
    if recipe.format == "awq":
        return {
            "qweight": words_of(made.codes.T, 4, AWQ_ORDER),
            "qzeros": words_of(made.zero_points.T, 4, AWQ_ORDER),
            "scales": scales.t().contiguous(),
        }
    if recipe.format in ("gptq", "gptq_v2"):
        inputs, groups = made.codes.shape[1], made.scales.shape[1]
        words = words_of(made.zero_points.T, recipe.bits)
        if recipe.format == "gptq":
            words -= 0x11111111 if recipe.bits == 4 else 0x01010101
        return {
            "qweight": words_of(made.codes, recipe.bits).t().contiguous(),
            "qzeros": words,
            "scales": scales.t().contiguous(),
            "g_idx": (torch.arange(inputs) // (inputs // groups)).int(),
        }
    return _compressed_tensors(made, scales, recipe)


def _compressed_tensors(made: Rounded, scales: Tensor, recipe: Recipe) -> dict[str, Tensor]:
    middle = 1 << (recipe.bits - 1)
    points = torch.from_numpy(made.zero_points.astype(np.int16) - middle).to(torch.int8)
    if recipe.group < 0:
        scales, points = scales[:1, 0].clone(), points[:1, 0].clone()
    parts = {"weight_scale": scales}
    if recipe.format == "pack-quantized":
        parts["weight_packed"] = words_of(made.codes, recipe.bits)
        parts["weight_shape"] = torch.tensor(made.codes.shape)
        if recipe.group >= 0:
            points = words_of(made.zero_points.T, recipe.bits).t().contiguous()
    else:
        codes = made.codes.astype(np.int16) - middle
        parts["weight"] = torch.from_numpy(codes).to(torch.int8)
    if not recipe.symmetric:
        parts["weight_zero_point"] = points
    return parts


def words_of(codes: _Numbers, bits: int, order: tuple[int, ...] = ()) -> Tensor:
    """(rows, codes) -> (rows, words) int32. order: which code is in each place of a word."""
    each = 32 // bits
    missing = -codes.shape[1] % each
    padded = np.pad(codes, ((0, 0), (0, missing))).astype(np.uint32)
    made = np.zeros((len(padded), padded.shape[1] // each), dtype=np.uint32)
    for place, number in enumerate(order or range(each)):
        made |= padded[:, number::each] << np.uint32(place * bits)
    return torch.from_numpy(made.view(np.int32))
