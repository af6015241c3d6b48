"""Attention by torch over parts of a context, and how parts become one.

Of one part of a context there is a result and a log-sum-exp: with scores s_i and values v_i,
sum(exp(s_i) v_i) / sum(exp(s_i)) and log(sum(exp(s_i))). Two parts merge into what one softmax over
both would give, since exp(lse) is the weight that each one lacks (FlashAttention's split-KV;
Hydragen, Juravsky et al., 2024; DeFT, Yao et al., 2024).
"""

from __future__ import annotations

import torch
from torch import Tensor

# The most scores that are written out at once, of a query with all heads if that has more: 128 MiB
# in float32, as much for their weights, and again in the types before and after.
MOST_SCORES = 1 << 25


def attend_part(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, cap: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Attention over one part of the context.

    q: (b, heads, queries, head_dim); keys, values: (b, heads, tokens, head_dim), any strides.
    mask: added to the scores, broadcast to (b, heads, queries, tokens). cap: scaled scores s are
    cap tanh(s / cap), before the mask; 0: they stay.
    Returns the result, shaped and typed like q, and the lse, (b, heads, queries) float32.
    """
    if q.device.type == "cpu" and not cap:
        # What scaled_dot_product_attention calls on the CPU, which then drops the second result.
        out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            q, keys, values, attn_mask=mask, scale=scale
        )
        return out, lse
    return plain_part(q, keys, values, mask, scale, cap)


def plain_part(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, cap: float = 0.0
) -> tuple[Tensor, Tensor]:
    """The same on any device, as it is written in books; scores are float32. Some queries at a
    time: a long chunk has more scores than there is memory.
    """
    at_once = max(MOST_SCORES // max(q.shape[0] * q.shape[1] * keys.shape[2], 1), 1)
    if q.shape[2] <= at_once:
        return _written_out(q, keys, values, mask, scale, cap)
    parts = []
    for first in range(0, q.shape[2], at_once):
        some = slice(first, first + at_once)
        its = mask if mask is None or mask.shape[-2] == 1 else mask[..., some, :]
        parts.append(_written_out(q[:, :, some], keys, values, its, scale, cap))
    outs, lses = zip(*parts, strict=True)
    return torch.cat(outs, 2), torch.cat(lses, 2)


def _written_out(
    q: Tensor, keys: Tensor, values: Tensor, mask: Tensor | None, scale: float, cap: float
) -> tuple[Tensor, Tensor]:
    scores = _multiplied(q, keys.transpose(-1, -2)).float().mul_(scale)
    if cap:
        scores.div_(cap).tanh_().mul_(cap)
    if mask is not None:
        scores += mask
    weights = scores.softmax(-1)
    # By a score that is largest and its weight: logsumexp is eight kernels of a GPU.
    lse = scores.amax(-1).sub_(weights.amax(-1).log_())
    return _multiplied(weights.to(values.dtype), values), lse


def _multiplied(x: Tensor, by: Tensor) -> Tensor:
    """(b, heads, m, k) times (b, heads, k, n); heads that have the same `by` count as more rows of
    one, since torch would copy it for each of them.
    """
    if by.stride(1) or x.shape[1] == 1:
        return torch.matmul(x, by)
    made: Tensor = torch.matmul(x.flatten(1, 2), by[:, 0]).unflatten(1, x.shape[1:3])
    return made


def attend_all(q: Tensor, keys: Tensor, values: Tensor, cap: float = 0.0) -> tuple[Tensor, Tensor]:
    """All queries over all tokens, without a mask.

    q: (heads, queries, head_dim), already scaled; keys, values: (tokens, heads, head_dim). cap: see
    `attend_part`.
    Returns the result (heads, queries, head_dim) and the lse (heads, queries) float32.
    """
    keys, values = keys.transpose(0, 1), values.transpose(0, 1)
    out, lse = attend_part(q[None], keys[None], values[None], None, 1.0, cap)
    return out[0], lse[0]


def merge(out: Tensor, lse: Tensor, part: Tensor, part_lse: Tensor) -> None:
    """Take another part of the context in, in place.

    out, part: (..., head_dim), lse, part_lse: (...); out, lse and part_lse float32.
    """
    # exp(b) / (exp(a) + exp(b)) without overflow.
    weight = (part_lse - lse).sigmoid_()
    out.lerp_(part.float(), weight[..., None])
    torch.logaddexp(lse, part_lse, out=lse)
