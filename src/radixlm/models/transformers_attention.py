"""Attention of transformers' modules over our pool: what they call instead of their own.

A pool's layer is a call's place in the order of a step's calls: some layers ask twice, some are run
several times.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from radixlm.attention.attend import Attend
from radixlm.layers.rotary import Rotation

# What it is called in transformers' table of attention functions.
NAME = "radixlm"
# Methods that make masks, and what modules get in place of theirs: none, or what is added to the
# scores of each key, (1, heads, 1, tokens).
MASKS: Mapping[str, Callable[..., Tensor | None]] = {
    "_prepare_decoder_attention_mask": lambda *_: None,
    "prepare_dynamic_mask": lambda dt_states, **_: dt_states[:, :, None],
}
# Of attention's arguments those tensors that change nothing here.
_HARMLESS = frozenset({"position_ids", "cache_position", "position_embeddings"})


class AttentionCall(NamedTuple):
    """The arguments with which attention is called. heads: of queries, of keys; dims: of keys, of
    values.
    """

    heads: tuple[int, int]
    dims: tuple[int, int]
    window: int | None
    cap: float
    causal: bool
    others: tuple[str, ...]


class Bridge:
    """A bridge from transformers' attention interface to one step's `Attend`; with none it takes
    notes, and answers with zeros.
    """

    def __init__(self) -> None:
        self.attend: Attend | None = None
        self.calls: list[AttentionCall] = []
        self._layer = 0
        self._unturned: Rotation | None = None

    def begin(self, attend: Attend | None) -> None:
        """Begin a step."""
        self.attend, self._layer = attend, 0

    def __call__(
        self, q: Tensor, k: Tensor, v: Tensor, scale: float, more: Mapping[str, Any]
    ) -> Tensor:
        """q, k, v: (1, heads, tokens, head_dim) -> (1, tokens, heads, head_dim)."""
        tokens, of_values = q.shape[2], v.shape[3]
        if self.attend is None:
            self.calls.append(_noted(q, k, v, more))
            return q.new_zeros(1, tokens, q.shape[1], of_values)
        layer, self._layer = self._layer, self._layer + 1
        head_dim = max(q.shape[3], of_values)
        factor = scale * math.sqrt(head_dim)
        q = q if factor == 1 else q * factor
        # Zeros add nothing to scores, and nothing to what is answered.
        q, k, v = (
            each if each.shape[3] == head_dim else pad(each, (0, head_dim - each.shape[3]))
            for each in (q, k, v)
        )
        qkv = torch.cat([each[0].transpose(0, 1) for each in (q, k, v)], dim=1).flatten(1)
        sinks = more.get("s_aux")
        sinks = None if sinks is None else sinks.detach().float()
        answers = self.attend(layer, qkv, self._rotation(q), None, sinks)
        return answers.view(1, tokens, -1, head_dim)[..., :of_values]

    def _rotation(self, q: Tensor) -> Rotation:
        """The rotation of nothing: transformers has turned them."""
        tokens, head_dim = q.shape[2:]
        known = self._unturned
        if known is None or known.table.shape[0] < tokens or known.table.shape[1] != head_dim:
            table = q.new_zeros(tokens, head_dim)
            table[:, : head_dim // 2] = 1
            self._unturned = known = Rotation(table)
        return Rotation(known.table[:tokens])


def _noted(q: Tensor, k: Tensor, v: Tensor, more: Mapping[str, Any]) -> AttentionCall:
    others = (
        name
        for name, value in more.items()
        if isinstance(value, Tensor) and name not in _HARMLESS and name != "s_aux"
    )
    return AttentionCall(
        (q.shape[1], k.shape[1]),
        (k.shape[3], v.shape[3]),
        more.get("sliding_window"),
        float(more.get("softcap") or 0),
        more.get("is_causal") is not False,
        tuple(others),
    )


def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **more: Any,
) -> tuple[Tensor, None]:
    """Attend, called as transformers calls attention. A mask is one that the model made by
    itself.
    """
    more.setdefault("is_causal", getattr(module, "is_causal", True))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if attention_mask is not None and attention_mask.shape[2] == 1:
        query, key = _lengthened(query, key, scale, attention_mask)
    elif attention_mask is not None:
        more["attention_mask"] = attention_mask
    bridge: Bridge = module.radixlm
    return bridge(query, key, value, scale, more), None


def _lengthened(q: Tensor, k: Tensor, scale: float, added: Tensor) -> tuple[Tensor, Tensor]:
    """Queries and keys of two more numbers (sizes stay even), whose scaled products have `added`:
    (1, heads, 1, tokens), alike for all queries that read a head of keys.
    """
    more = q.new_tensor([1 / scale, 0]).expand(*q.shape[:3], 2)
    its = added[:, :: q.shape[1] // k.shape[1]].transpose(2, 3).expand(*k.shape[:3], 2)
    return torch.cat([q, more], dim=3), torch.cat([k, its.to(k.dtype)], dim=3)
