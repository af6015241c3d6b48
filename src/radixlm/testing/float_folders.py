"""Small checkpoints with weights in floats of 8 and 4 bits, as several tools store them, written by
the formats' own rules and by none of our readers' code.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from radixlm.testing.quantized_folders import set_section

_WEIGHTS = "model.safetensors"
_E2M1 = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
_MOST_E4M3 = 448.0
_ALGORITHMS = {(0, 0): "FP8", (1, 0): "FP8_PER_CHANNEL_PER_TOKEN", (128, 128): "FP8_PB_WO"}
Parts = dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class FloatRecipe:
    """block: outputs and inputs that share a scale, 0: all; of NVFP4 and MXFP4 it is their own.
    beside: whether config.json says nothing, as in ModelOpt's older folders.
    """

    format: Literal[
        "fp8", "fbgemm_fp8", "float-quantized", "modelopt", "nvfp4", "mxfp4", "modelopt_nvfp4"
    ]
    block: tuple[int, int] = (0, 0)
    beside: bool = False

    @property
    def section(self) -> dict[str, Any]:
        """`quantization_config` of such a folder, or what hf_quant_config.json holds."""
        if self.format == "fp8":
            blocks = list(self.block) if all(self.block) else None
            kind = "dynamic" if blocks else "static"
            made = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": kind}
            return made | ({"weight_block_size": blocks} if blocks else {})
        if self.format == "fbgemm_fp8":
            return {"quant_method": "fbgemm_fp8", "modules_to_not_convert": ["lm_head"]}
        if not self.format.startswith("modelopt"):
            return self._compressed_tensors()
        algorithm = _ALGORITHMS[self.block] if self.format == "modelopt" else "NVFP4"
        its: dict[str, Any] = {
            "quant_algo": algorithm,
            "kv_cache_quant_algo": "FP8",
            "exclude_modules": [],
        }
        if self.beside:
            return {"producer": {"name": "modelopt"}, "quantization": its}
        return {"quant_method": "modelopt", "ignore": ["lm_head"], **its}

    def _compressed_tensors(self) -> dict[str, Any]:
        strategies = {(0, 0): "tensor", (1, 0): "channel", (0, 1): "tensor_group"}
        strategy = strategies.get(self.block, "group" if self.block[0] == 1 else "block")
        weights: dict[str, Any] = {"num_bits": 8, "type": "float", "strategy": strategy}
        weights["group_size"] = self.block[1] if strategy == "group" else None
        weights["block_structure"] = list(self.block) if strategy == "block" else None
        name: str = self.format
        if name in ("nvfp4", "mxfp4"):
            of_tensor = name == "nvfp4"
            weights |= {"num_bits": 4, "strategy": "tensor_group" if of_tensor else "group"}
            weights["group_size"], name = 16 if of_tensor else 32, f"{name}-pack-quantized"
        inputs = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
        group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
        return {
            "quant_method": "compressed-tensors",
            "format": name,
            "config_groups": {"group_0": group},
            "kv_cache_scheme": {"num_bits": 8, "type": "float", "strategy": "tensor"},
            "ignore": ["lm_head"],
        }


def write_floats(plain: Path, folder: Path, recipe: FloatRecipe) -> Parts:
    """Write `plain` with the layers' products quantized. Returns the weights that the folder stands
    for, by transformers' names.
    """
    shutil.copytree(plain, folder)
    stored: Parts = {}
    whole: Parts = {}
    for name, tensor in load_file(plain / _WEIGHTS).items():
        if not name.endswith("_proj.weight"):
            stored[name] = whole[name] = tensor
            continue
        parts, whole[name] = float_parts(tensor.float(), recipe)
        module = name.removesuffix("weight")
        stored |= {f"{module}{part}": value for part, value in parts.items()}
        if recipe.format.startswith("modelopt") and name.endswith(
            ("k_proj.weight", "v_proj.weight")
        ):
            stored[f"{module}{module[-7]}_scale"] = torch.ones(())
    save_file(stored, folder / _WEIGHTS, metadata={"format": "pt"})
    if recipe.beside:
        (folder / "hf_quant_config.json").write_text(json.dumps(recipe.section))
    else:
        set_section(folder, recipe.section)
    return whole


def float_parts(weight: Tensor, recipe: FloatRecipe) -> tuple[Parts, Tensor]:
    """A weight's tensors by the names of its parts, and what they stand for."""
    if recipe.format in ("nvfp4", "mxfp4", "modelopt_nvfp4"):
        return _four_bits(weight, recipe.format)
    outputs, inputs = weight.shape
    high, wide = recipe.block[0] or outputs, recipe.block[1] or inputs
    rows, columns = -(-outputs // high), -(-inputs // wide)
    scales = torch.empty(rows, columns)
    for row in range(rows):
        for column in range(columns):
            part = weight[row * high : (row + 1) * high, column * wide : (column + 1) * wide]
            scales[row, column] = part.abs().max() / _MOST_E4M3
    each = scales.repeat_interleave(high, 0)[:outputs].repeat_interleave(wide, 1)[:, :inputs]
    codes = (weight / each).to(torch.float8_e4m3fn)
    name = "weight_scale_inv" if recipe.format == "fp8" and all(recipe.block) else "weight_scale"
    stored = scales.clone()
    if recipe.format == "modelopt" and recipe.block[0]:
        stored = stored.view(rows) if columns == 1 else stored.view(rows, 1, columns, 1)
    elif not recipe.block[0]:
        stored = stored.view(()) if recipe.format in ("fp8", "modelopt") else stored.view(1)
    parts = {"weight": codes, name: stored}
    if recipe.format in ("fp8", "modelopt") and not recipe.block[0]:
        parts["input_scale"] = torch.ones(())
    return parts, codes.float() * each


def _four_bits(weight: Tensor, kind: str) -> tuple[Parts, Tensor]:
    group = 32 if kind == "mxfp4" else 16
    blocks = weight.view(weight.shape[0], -1, group)
    tops = blocks.abs().amax(2) / 6
    if kind == "mxfp4":
        exponents = torch.log2(tops).ceil().clamp(-127, 127)
        stored, scales = (exponents + 127).to(torch.uint8), torch.exp2(exponents)
        parts = {"weight_scale": stored}
    else:
        overall = tops.max() / _MOST_E4M3
        stored = (tops / overall).to(torch.float8_e4m3fn)
        if kind == "modelopt_nvfp4":
            parts = {"weight_scale_2": overall, "input_scale": torch.ones(())}
            scales = stored.float() * overall
        else:
            parts = {"weight_global_scale": (1 / overall).view(1)}
            scales = stored.float() / parts["weight_global_scale"]
            parts["input_global_scale"] = torch.ones(1)
        parts["weight_scale"] = stored
    wanted = torch.where(scales[:, :, None] > 0, blocks / scales[:, :, None], 0.0)
    codes = (wanted.abs().unsqueeze(-1) - _E2M1).abs().argmin(-1)
    codes += 8 * (wanted < 0)
    made = torch.where(codes < 8, 1.0, -1.0) * _E2M1[codes % 8] * scales[:, :, None]
    pairs = codes.view(len(weight), -1, 2)
    packed = (pairs[:, :, 0] | pairs[:, :, 1] << 4).to(torch.uint8)
    parts["weight" if kind == "modelopt_nvfp4" else "weight_packed"] = packed
    return parts, made.view(weight.shape)
