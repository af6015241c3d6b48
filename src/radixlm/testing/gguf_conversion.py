"""Changes that llama.cpp's converters make to weights before these are rounded, and back."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

_COLUMNS = ("gpt_oss", "llama4_text")
_SCALED = {
    "q_proj": ("attention_in_multiplier",),
    "k_proj": ("attention_in_multiplier", "key_multiplier"),
    "v_proj": ("attention_in_multiplier",),
    "o_proj": ("attention_out_multiplier",),
    "out_proj": ("ssm_out_multiplier",),
    "lm_head": ("lm_head_multiplier",),
    "embed_tokens": ("embedding_multiplier",),
}


def changed(
    config: Mapping[str, Any], name: str, weight: Tensor
) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    """Returns what a file has, and a function that makes the weight of that."""
    if weight.dim() == 3 and config["model_type"] in _COLUMNS:
        return weight.transpose(1, 2), lambda its: its.transpose(1, 2).contiguous()
    is_decay, order, factor = name.endswith("A_log"), _order(config, name), _factor(config, name)
    dim = int(name.endswith("linear_attn.out_proj.weight"))
    made = -weight.exp() if is_decay else weight * factor
    made = made if order is None else made.index_select(dim, order)

    def back(its: Tensor) -> Tensor:
        its = its.reshape(weight.shape)
        its = its if order is None else its.index_select(dim, order.argsort())
        return its.neg().log() if is_decay else its / factor

    return made.reshape(_stored(config, name, weight.shape)), back


def _stored(config: Mapping[str, Any], name: str, shape: torch.Size) -> tuple[int, ...]:
    if re.search(r"conv1d\.weight|conv\.conv\.weight", name):
        return shape[0], shape[2]
    if name.endswith("mamba.norm.weight"):
        return config["mamba_n_groups"], -1
    return (*shape, 1) if re.search(r"mamba\.(A_log|D)", name) else tuple(shape)


def _order(config: Mapping[str, Any], name: str) -> Tensor | None:
    """The order in which a file has rows, or columns."""
    kind = name.removesuffix(".weight").split(".")[-1]
    if config["model_type"] == "glm4v_text" and re.search(r"\.[qk]_proj\.", name):
        size = config["head_dim"]
        pairs = torch.arange(size // 2).view(-1, 2).t().flatten()  # half of a head turns
        own = torch.cat((pairs, torch.arange(size // 2, size)))
        heads = config["num_attention_heads" if ".q_" in name else "num_key_value_heads"]
        return _of_heads(torch.arange(heads), size)[:, None].view(-1, size)[:, own].flatten()
    if ".linear_attn." not in name:
        return None
    keys, values = config["linear_num_key_heads"], config["linear_num_value_heads"]
    key, value = config["linear_key_head_dim"], config["linear_value_head_dim"]
    both, each = 2 * keys * key, values // keys
    if kind == "in_proj_qkvz":
        parts = [key, key, each * value, each * value]
        rows = torch.arange(keys * sum(parts)).view(keys, -1).split(parts, 1)
        return torch.cat([part.flatten() for part in rows])
    if config["model_type"] == "qwen3_next":
        return None
    turns = torch.arange(values).view(keys, each).t().flatten()
    match kind:
        case "in_proj_qkv" | "conv1d":
            return torch.cat((torch.arange(both), _of_heads(turns, value) + both))
        case "in_proj_z" | "out_proj":
            return _of_heads(turns, value)
        case "in_proj_a" | "in_proj_b" | "A_log" | "dt_bias":
            return turns
    return None


def _of_heads(heads: Tensor, size: int) -> Tensor:
    return (heads[:, None] * size + torch.arange(size)).flatten()


def _factor(config: Mapping[str, Any], name: str) -> float | Tensor:
    """Falcon-H1's."""
    kind = name.split(".")[-2]
    if config["model_type"] != "falcon_h1" or name.endswith("bias"):
        return 1.0
    if kind in ("gate_proj", "down_proj"):
        return float(config["mlp_multipliers"][kind == "down_proj"])
    if kind == "in_proj":
        inner, keys = config["mamba_d_ssm"], config["mamba_n_groups"] * config["mamba_d_state"]
        counts = torch.tensor((inner, inner, keys, keys, config["mamba_n_heads"]))
        each = torch.tensor(config["ssm_multipliers"]) * float(config["ssm_in_multiplier"])
        return each.repeat_interleave(counts)[:, None]
    return math.prod(float(config[each]) for each in _SCALED.get(kind, ()))
