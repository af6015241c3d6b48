"""Grammars' masks on logits."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

# For each byte of a mask, what is added to the logits of its eight tokens: 0 or -inf. To look that
# up costs a third of a masked fill, a tenth where allowed and not allowed tokens alternate.
_ADDED = np.where(
    np.unpackbits(np.arange(256, dtype=np.uint8)[:, None], axis=1, bitorder="little") == 1,
    np.float32(0),
    np.float32(-np.inf),
)


def masked(logits: Tensor, rows: Sequence[int], bits: npt.NDArray[np.int32]) -> Tensor:
    """(rows, vocab) float32: what `bits` do not allow is -inf in `rows`; `logits` is unchanged.

    rows: rising, at least one. bits: (len(rows), at least vocab / 32); see TokenMasks.
    """
    added = _added(bits, logits.device)[:, : logits.shape[1]]
    if len(rows) == len(logits):
        return added.add_(logits)
    changed = logits.clone()
    changed[torch.tensor(rows, device=logits.device)] += added
    return changed


def _added(bits: npt.NDArray[np.int32], device: torch.device) -> Tensor:
    """(rows, 32 x words) float32."""
    octets = bits.view(np.uint8)
    if device.type == "cpu":
        return torch.from_numpy(_ADDED.take(octets, axis=0)).flatten(1)
    places = torch.from_numpy(octets).to(device).int()
    return functional.embedding(places, torch.from_numpy(_ADDED).to(device)).flatten(1)
