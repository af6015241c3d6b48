"""The changes that llama.cpp's converters make to weights beside their names, undone:

of an architecture that is `turned`   rows of queries and keys are put back in order; of GLM-4
                                      with positions in several axes the other way around
norms that store their weight less 1  the 1 is taken off
A_log                                 is made of -exp(A_log)
heads of a delta rule's values        are put back beside those of the same key
in_proj_qkvz                          rows are put back by heads of keys
gate and up of experts                take turns where transformers stores them so
"""

from __future__ import annotations

import torch
from torch import Tensor

from radixlm.core.errors import CheckpointError
from radixlm.layers.gated_delta import DeltaSizes
from radixlm.models.cuts import Cut
from radixlm.models.model_config import ModelConfig
from radixlm.products.quantized import QuantizedWeight


class Converted:
    """The weights of a model as transformers has them. turned: see `gguf_fields.Family`."""

    def __init__(self, config: ModelConfig, *, turned: bool) -> None:
        self._config, self._turned = config, turned

    def undone(
        self, name: str, weight: Tensor | QuantizedWeight, *, joined: bool
    ) -> Tensor | QuantizedWeight:
        """joined: it is made of several tensors. Raises CheckpointError for an A above 0."""
        order = self._rows(name, weight.shape[0], joined=joined)
        if order is not None:
            weight = weight.rows(order) if isinstance(weight, QuantizedWeight) else weight[order]
        state = self._config.traits.state
        if isinstance(state, DeltaSizes) and name.endswith(f"{state.place}.out_proj.weight"):
            weight = self._columns(name, weight, state)
        if name.endswith(".A_log"):
            weight = floats(weight).neg()
            if weight.min() < 0:
                raise CheckpointError(f"{name} is made of numbers above 0")
            return weight.log()
        base = self._config.traits.norms.base
        if base and name.endswith("norm.weight") and (not state or f".{state.place}." not in name):
            return floats(weight) - base
        return weight

    def _rows(self, name: str, count: int, *, joined: bool) -> Tensor | None:
        """The order in which stored rows are put; None: they stay."""
        config, state = self._config, self._config.traits.state
        experts, kind = config.traits.experts, name.removesuffix(".weight").split(".")[-1]
        if kind == "bias":
            kind = name.split(".")[-2]
        if joined and experts is not None and experts.paired:
            return torch.arange(count).view(2, -1).t().flatten()
        if kind in ("q_proj", "k_proj"):
            return self._of_heads(count)
        if not isinstance(state, DeltaSizes) or f".{state.place}." not in name:
            return None
        if kind == "in_proj_qkvz" and joined:
            return state.orders()[kind].argsort()
        sizes = {
            **dict.fromkeys(("in_proj_qkv", "conv1d", "in_proj_z"), state.value),
            **dict.fromkeys(("in_proj_a", "in_proj_b", "A_log", "dt_bias"), 1),
        }
        if kind not in sizes or not _is_dealt(state):
            return None
        heads = _of_size(_grouped(state), sizes[kind])
        before = count - len(heads)  # queries and keys
        return torch.cat((torch.arange(before), heads + before))

    def _of_heads(self, count: int) -> Tensor | None:
        size, turned = self._config.head_dim, self._config.rope.turned(self._config.head_dim)
        if self._turned:
            order = torch.arange(size).view(-1, 2).t().flatten()
        elif self._config.model_type == "glm4v_text":
            pairs = torch.arange(turned).view(2, -1).t().flatten()
            order = torch.cat((pairs, torch.arange(turned, size)))
        else:
            return None
        return (torch.arange(count // size)[:, None] * size + order).flatten()

    def _columns(
        self, name: str, weight: Tensor | QuantizedWeight, state: DeltaSizes
    ) -> Tensor | QuantizedWeight:
        """Heads of what is read, in floats where some share a scale."""
        if not _is_dealt(state):
            return weight
        if isinstance(weight, QuantizedWeight) and state.value % weight.group:
            weight = floats(weight)
        size = state.value
        heads = tuple((at * size, (at + 1) * size) for at in _grouped(state).tolist())
        return Cut(1, heads).of(name, weight)


def _is_dealt(state: DeltaSizes) -> bool:
    """Whether heads of values are stored in turns, one of each key: Qwen3-Next's are not."""
    return not state.orders() and state.values != state.keys


def _grouped(state: DeltaSizes) -> Tensor:
    """Places where heads of values are stored, those of the same key beside one another."""
    return torch.arange(state.values).view(-1, state.keys).t().flatten()


def _of_size(heads: Tensor, size: int) -> Tensor:
    return (heads[:, None] * size + torch.arange(size)).flatten()


def floats(weight: Tensor | QuantizedWeight) -> Tensor:
    """The numbers, float32."""
    return weight.dequantized() if isinstance(weight, QuantizedWeight) else weight.float()
