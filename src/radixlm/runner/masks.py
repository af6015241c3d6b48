"""Grammars' masks on logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor


def masked(logits: Tensor, rows: Sequence[int], bits: npt.NDArray[np.int32]) -> Tensor:
    """(rows, vocab) float32: what `bits` do not allow is -inf in `rows`; `logits` is unchanged.

    rows: rising, at least one. bits: (len(rows), at least vocab / 32); see TokenMasks.
    """
    allowed = _unpacked(bits, logits.shape[1], logits.device)
    if len(rows) == len(logits):
        return torch.where(allowed, logits, -torch.inf)
    changed = logits.clone()
    place = torch.tensor(rows, device=logits.device)
    changed[place] = torch.where(allowed, logits[place], -torch.inf)
    return changed


def _unpacked(bits: npt.NDArray[np.int32], vocab: int, device: torch.device) -> Tensor:
    """(rows, vocab) bool."""
    if device.type == "cpu":
        each = np.unpackbits(bits.view(np.uint8), axis=1, count=vocab, bitorder="little")
        return torch.from_numpy(each).view(torch.bool)
    words = torch.from_numpy(bits).to(device)[:, :, None]  # an eighth of what the bytes would be
    each_bit = (words >> torch.arange(32, dtype=torch.int32, device=device)) & 1
    return each_bit.flatten(1)[:, :vocab].bool()
