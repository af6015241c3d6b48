"""Log-probabilities of chosen tokens and of the best ones, from the model's own distribution."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from radixlm.core.request import TokenLogprob

BLOCK_BYTES = 64 << 20


def token_logprobs(
    logits: Tensor, targets: Sequence[int], tops: Sequence[int]
) -> tuple[TokenLogprob, ...]:
    """Of row i: log p of targets[i], and of its tops[i] most likely tokens, best first.

    logits: (rows, vocab) float32, as the model gave them: before temperature, bias or penalties.
    NaN where a row's are not finite. Equally likely tokens stand in the order of their ids. Works
    in blocks of rows, so that what it needs beside the logits stays below 64 MiB or one row.
    """
    vocab = logits.shape[1]
    block = max(1, BLOCK_BYTES // (8 * vocab))
    made: list[TokenLogprob] = []
    for first in range(0, len(targets), block):
        part = slice(first, first + block)
        made += _block(logits[part], targets[part], tops[part])
    return tuple(made)


def _block(logits: Tensor, targets: Sequence[int], tops: Sequence[int]) -> list[TokenLogprob]:
    total = logits.logsumexp(-1, keepdim=True)
    total = torch.where(total.isfinite(), total, torch.nan)
    wanted = torch.tensor(targets, dtype=torch.int64, device=logits.device)[:, None]
    chosen = (logits.gather(1, wanted) - total).flatten().tolist()
    best = _best(logits, min(max(tops), logits.shape[1]))
    values = (logits.gather(1, best) - total).tolist()
    ids = best.tolist()
    return [
        TokenLogprob(target, chosen[i], tuple(zip(ids[i][:top], values[i][:top], strict=True)))
        for i, (target, top) in enumerate(zip(targets, tops, strict=True))
    ]


def _best(logits: Tensor, count: int) -> Tensor:
    """(rows, count) ids by falling logit, ties by rising id.

    topk alone leaves ties to chance, and logits of a bfloat16 head tie often. So it sorts integers
    that hold both: a float's bits order like the float once those of negative ones are flipped
    (all but the sign), and the id goes below them.

         | 32 bits: the logit's rank | 32 bits: 2**31 - id |
    """
    if not count:
        return torch.empty((logits.shape[0], 0), dtype=torch.int64, device=logits.device)
    bits = logits.contiguous().view(torch.int32)
    rank = torch.where(bits < 0, bits ^ 0x7FFFFFFF, bits).long()
    ids = torch.arange(logits.shape[1], device=logits.device)
    order = (rank << 32) - ids
    # Read the ids back as positions: no need to unpack the sum.
    return order.topk(count).indices
