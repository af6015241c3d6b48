"""Draws each row's token: top-k, top-p and min-p say from which probability on tokens are kept.

All three cut at a value, never at a rank: tokens as likely as the last one kept are kept too. So
what is kept does not depend on how a sort orders equals, and no row depends on another.
probs are (rows, vocab) float32, not negative; they need not add up to 1 and are not changed. The
thresholds are (rows, 1) float32; a token is kept when it is not below.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from radixlm.core.batch import ScheduledRow
from radixlm.core.request import TokenLogprob
from radixlm.runner.logits_processors import adjusted, forbid

# The wanted mass mostly lies in few tokens; 128 cost a tenth of sorting a vocabulary of 49,152.
_HEAD = 128
_MASK = 2**64 - 1
_WEYL = 0x9E3779B97F4A7C15
_FRACTION_BITS = 52
BLOCK_BYTES = 64 << 20
_DRAW_BLOCK = 128
# Temperatures below the smallest normal float32 would divide 0 by 0.
_COLDEST = torch.finfo(torch.float32).tiny


def top_k_threshold(probs: Tensor, k: Tensor) -> Tensor:
    """Keep the k[i] most likely tokens of row i; k: (rows,) int64 from 1 to vocab."""
    return probs.topk(int(k.max())).values.gather(1, k[:, None] - 1)


def top_p_threshold(probs: Tensor, p: Tensor) -> Tensor:
    """Keep the most likely tokens whose mass first reaches p[i] of the row's; p: (rows,) float64.

    The best token is always kept (nucleus sampling, Holtzman et al., 2020).
    """
    # Not in one sum: torch adds up a single row in another order than several.
    wanted = (_blocks_of(probs).sum(-1).double().sum(-1) * p)[:, None]
    head = probs.topk(min(_HEAD, probs.shape[1])).values
    threshold, reached = _mass_threshold(head, wanted)
    if not bool(reached.all()):
        flat = (~reached).nonzero().flatten()
        threshold[flat] = _mass_threshold(_falling(probs[flat]), wanted[flat])[0]
    return threshold


def min_p_threshold(probs: Tensor, p: Tensor) -> Tensor:
    """Keep tokens at least p[i] times as likely as the row's best one; p: (rows,) float64."""
    return probs.amax(-1, keepdim=True) * p[:, None].float()


def _mass_threshold(falling: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """The value at which the running sum reaches `wanted`, and whether it did."""
    short = (falling.cumsum(-1, dtype=torch.float64) < wanted).sum(-1, keepdim=True)
    length = falling.shape[1]
    return falling.gather(1, short.clamp(max=length - 1)), (short < length).flatten()


def _falling(probs: Tensor) -> Tensor:
    """Each row's values, sorted, the largest first."""
    if probs.device.type == "cpu":
        # numpy's sort is vectorised: 1 ms for 49,152 values, torch's 3.6 ms.
        return -torch.from_numpy(np.sort((-probs).numpy(), axis=-1))
    return probs.sort(-1, descending=True).values


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), the same for the same seed (any integer) and position (>= 0).

    The output function of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
    Generators, 2014), first of the seed and then of the position steps after it: neighbouring
    seeds share nothing. 52 bits, so that the largest one stays below 1 when multiplied.
    """
    start = _mix(seed + _WEYL)
    return (_mix(start + (position + 1) * _WEYL) >> (64 - _FRACTION_BITS)) * 2.0**-_FRACTION_BITS


def _mix(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)


def sample(
    logits: Tensor,
    rows: Sequence[ScheduledRow],
    masks: tuple[Sequence[int], npt.NDArray[np.int32]] | None = None,
) -> list[int | None]:
    """Choose one token per row: greedy at temperature 0 (ties: lowest id), else drawn.

    logits: (rows, vocab) float32, unchanged but for what masks forbid, which may become -inf.
    masks: which of the rows have one, and these masks' bits; see TokenMasks. They come after bias
    and penalties, which so cannot bring back what is not allowed.
    A drawn token depends only on its row's logits, parameters, seed and number of tokens.
    None for a row whose logits are not finite; it changes nothing for the others.
    """
    if not rows:
        return []
    logits = adjusted(logits, rows)
    if masks is not None:
        forbid(logits, *masks)
    best = _argmax(logits)
    peaks = logits.gather(1, best[:, None])
    finite = [math.isfinite(peak) for peak in peaks.flatten().tolist()]
    drawn = [i for i, row in enumerate(rows) if finite[i] and not row.request.params.greedy]
    # Drawing makes a few copies of the logits: bounded, some rows at a time.
    block = max(1, BLOCK_BYTES // (4 * logits.shape[1]))
    for first in range(0, len(drawn), block):
        part = drawn[first : first + block]
        scores = _rows_of(logits, part) - _rows_of(peaks, part)
        best[part] = _draw(scores, [rows[i] for i in part])
    return [token if good else None for token, good in zip(best.tolist(), finite, strict=True)]


def _draw(scores: Tensor, rows: Sequence[ScheduledRow]) -> Tensor:
    """Draw one token per row; scores: (rows, vocab) logits less their largest, overwritten.

    Temperature first, then top-k, top-p, min-p, each over what the one before has left.
    """
    params = [row.request.params for row in rows]
    temperatures = [max(p.temperature, _COLDEST) for p in params]
    scores.div_(torch.tensor(temperatures, device=scores.device)[:, None])
    probs = torch.softmax(scores, dim=-1)
    vocab = probs.shape[1]
    _cut(probs, top_k_threshold, [p.top_k if 0 < p.top_k < vocab else None for p in params])
    _cut(probs, top_p_threshold, [p.top_p if p.top_p < 1 else None for p in params])
    _cut(probs, min_p_threshold, [p.min_p if p.min_p > 0 else None for p in params])
    numbers = [uniform(row.request.seed, row.stop) for row in rows]
    return _invert(probs, torch.tensor(numbers, dtype=torch.float64, device=probs.device))


def _invert(probs: Tensor, numbers: Tensor) -> Tensor:
    """The token at which the running sum, in the order of ids, passes number x total.

    Two levels, since a running sum is the slowest thing one can do to a vocabulary:

        sums of 128 tokens each   | .1 | .3 | .2 | ... |     find the block,
                                         |
                                  | tokens of it |           then the token in it

    probs: (rows, vocab), not negative, each row's sum above 0; numbers: (rows,) in [0, 1).
    """
    rows = len(probs)
    blocks = _blocks_of(probs)
    sums = blocks.sum(-1).double()
    mass = sums.cumsum(-1)
    point = numbers[:, None] * mass[:, -1:]
    block = torch.searchsorted(mass, point, right=True)
    point = (point - (mass - sums).gather(1, block)).clamp(min=0.0)
    inner = blocks[torch.arange(rows, device=probs.device), block[:, 0]].double().cumsum(-1)
    token = torch.searchsorted(inner, point, right=True)
    # A block's sum is rounded: the point may lie just past the last token that has a probability.
    last = (inner < inner[:, -1:]).sum(-1, keepdim=True)
    return (block * _DRAW_BLOCK + torch.minimum(token, last)).flatten()


def _blocks_of(probs: Tensor) -> Tensor:
    """(rows, vocab) -> (rows, blocks, tokens of a block), with zeros at the end."""
    rows, vocab = probs.shape
    return functional.pad(probs, (0, -vocab % _DRAW_BLOCK)).view(rows, -1, _DRAW_BLOCK)


def _cut(
    probs: Tensor,
    threshold: Callable[[Tensor, Tensor], Tensor],
    limits: Sequence[int | float | None],
) -> None:
    """Set to 0, in place, what lies below the threshold in the rows that have a limit."""
    part = [i for i, limit in enumerate(limits) if limit is not None]
    if not part:
        return
    values = [limit for limit in limits if limit is not None]
    dtype = torch.int64 if isinstance(values[0], int) else torch.float64
    limit = torch.tensor(values, dtype=dtype, device=probs.device)
    # Nothing is below 0: rows without a limit stay as they are.
    floor = torch.zeros((len(probs), 1), device=probs.device)
    floor[part] = threshold(_rows_of(probs, part), limit)
    probs.masked_fill_(probs < floor, 0.0)


def _rows_of(tensor: Tensor, part: Sequence[int]) -> Tensor:
    """The rows in `part`, which is rising; no copy when they are all."""
    return tensor if len(part) == len(tensor) else tensor[torch.tensor(part, device=tensor.device)]


def _argmax(logits: Tensor) -> Tensor:
    """(rows,) ids of the best tokens, the lowest of equals; NaN counts as best."""
    if logits.device.type == "cpu":
        # numpy's is vectorised: 0.4 ms for 64 rows of 49,152, torch's 2.9 ms.
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.argmax(-1)


def token_logprobs(
    logits: Tensor, targets: Sequence[int], tops: Sequence[int]
) -> tuple[TokenLogprob, ...]:
    """Log-probabilities of row i: log p of targets[i], and of its tops[i] most likely tokens, best
    first.

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
    finite = logits.amax(-1, keepdim=True).isfinite()
    best = _best(logits, min(max(tops), logits.shape[1]))
    # Not by logsumexp, which adds up a single row in another order than several.
    scores = logits.log_softmax(-1)
    wanted = torch.tensor(targets, dtype=torch.int64, device=logits.device)[:, None]
    chosen = torch.where(finite, scores.gather(1, wanted), torch.nan).flatten().tolist()
    values = torch.where(finite, scores.gather(1, best), torch.nan).tolist()
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
