"""oneDNN's matrix products on the CPU, which torch's own do not always use."""

from __future__ import annotations

import torch
from torch import Tensor

# Found once: looking an operator up takes as long as starting it.
_PACKET = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
_LINEAR = None if _PACKET is None else _PACKET.default


def has_products(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this build and machine have them. Without, torch's bfloat16 products take a hundred
    times as long; its float32 products, by another library, on AMD's processors twice as long.
    """
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if _LINEAR is None:
        return False
    if dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return dtype == torch.float32


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """(tokens, in) -> (tokens, out): x times the transposed weight (out, in), plus the bias.

    weight: contiguous, or the transpose of what is, or in oneDNN's own layout. Any other strides
    fall out of oneDNN and take a thousand times as long.
    """
    if _LINEAR is None:
        raise RuntimeError("this build of torch has no oneDNN products; ask has_products first")
    product: Tensor = _LINEAR(x, weight, bias, "none", [], "")
    return product
