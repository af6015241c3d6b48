"""Draws each row's token: top-k, top-p and min-p say from which probability on tokens are kept.

All three cut at a value, never at a rank: tokens as likely as the last one kept are kept too. So
what is kept does not depend on how a sort orders equals, and no row depends on another.
probs are (rows, vocab) float32, not negative; they need not add up to 1 and are not changed. The
thresholds are (rows, 1) float32; a token is kept when it is not below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import isfinite
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from radixlm.core.batch import ScheduledRow
from radixlm.core.request import TokenLogprob
from radixlm.memory.staging import Sending
from radixlm.runner.logits_processors import LogitChanges, forbid

# The wanted mass mostly lies in few tokens; 128 cost a tenth of sorting a vocabulary of 49,152.
_HEAD, HEAD_OF_GPUS = 128, 1024
# In place of a token: logits that are not finite; a top-p that was not reached on a GPU.
NOT_FINITE, FLAT = -1, -2
_MASK = 2**64 - 1
_WEYL = 0x9E3779B97F4A7C15
_FRACTION_BITS = 52
BLOCK_BYTES = 64 << 20
_DRAW_BLOCK = 128
# Temperatures below the smallest normal float32 would divide 0 by 0.
_COLDEST = torch.finfo(torch.float32).tiny
# Which of the rows have one, and these masks' bits; see TokenMasks.
Masks: TypeAlias = tuple[Sequence[int], npt.NDArray[np.int32]]


def top_k_threshold(probs: Tensor, k: Tensor, most: int) -> Tensor:
    """Keep the k[i] most likely tokens of row i; k: (rows,) int64, from 1 to `most`."""
    return probs.topk(most).values.gather(1, k[:, None] - 1)


def top_p_threshold(probs: Tensor, p: Tensor, *, whole: bool = False) -> Tensor:
    """Keep the most likely tokens whose mass first reaches p[i] of the row's; p: (rows,) float64.

    The best token is always kept (nucleus sampling, Holtzman et al., 2020). NaN, on another device
    than the CPU, where a row's head does not reach it: the host would have to wait for that. whole:
    then all is sorted.
    """
    # Not in one sum: torch adds up a single row in another order than several.
    wanted = (_blocks_of(probs).sum(-1).double().sum(-1) * p)[:, None]
    if whole:
        return _mass_threshold(_falling(probs), wanted)[0]
    on_cpu = probs.device.type == "cpu"
    head = probs.topk(min(_HEAD if on_cpu else HEAD_OF_GPUS, probs.shape[1])).values
    threshold, reached = _mass_threshold(head, wanted)
    if not on_cpu:
        return threshold.where(reached[:, None], torch.nan)
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


class _Limit(NamedTuple):
    """A cut of some rows. at: which of the drawn ones. values: of each, on the device; most: of k
    the largest.
    """

    at: Tensor
    values: Tensor
    most: float

    @classmethod
    def of(cls, limits: Sequence[float | None], kind: type, sending: Sending) -> _Limit | None:
        """limits: of all rows; None: it has none."""
        part = [i for i, limit in enumerate(limits) if limit is not None]
        if not part:
            return None
        values = [limit for limit in limits if limit is not None]
        there = sending.put(np.array(part)), sending.put(np.array(values, dtype=kind))
        return cls(*there, max(values))

    def cut(self, probs: Tensor, threshold: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
        """Set to 0, in place, what lies below the threshold; (rows,): whether it has none."""
        # Nothing is below 0: rows without a limit stay as they are.
        floor = torch.zeros((len(probs), 1), device=probs.device)
        floor.index_copy_(0, self.at, threshold(_rows_of(probs, self.at), self.values))
        probs.masked_fill_(probs < floor, 0.0)
        return floor.isnan().flatten()


class _Drawn:
    """The rows that are drawn at a time, and what they ask for. Temperature first, then top-k,
    top-p, min-p, each over what the one before has left.
    """

    def __init__(
        self, rows: Sequence[ScheduledRow], at: Sequence[int], vocab: int, sending: Sending
    ) -> None:
        """at: which of the rows."""
        its = [rows[i] for i in at]
        params = [row.request.params for row in its]
        self.at = sending.put(np.array(at))
        temperatures = [max(p.temperature, _COLDEST) for p in params]
        self._temperatures = sending.put(np.array(temperatures, dtype=np.float32))
        top_k = [p.top_k if 0 < p.top_k < vocab else None for p in params]
        self._top_k = _Limit.of(top_k, np.int64, sending)
        self._top_p = _Limit.of([p.top_p if p.top_p < 1 else None for p in params], float, sending)
        self._min_p = _Limit.of([p.min_p if p.min_p > 0 else None for p in params], float, sending)
        numbers = [uniform(row.request.seed, row.stop) for row in its]
        self._numbers = sending.put(np.array(numbers))

    def tokens(self, logits: Tensor, peaks: Tensor, *, whole: bool) -> Tensor:
        """(rows drawn,) int64. logits, peaks: of all rows, (rows, vocab) and their largest,
        unchanged.
        """
        scores = _rows_of(logits, self.at) - _rows_of(peaks, self.at)
        probs = torch.softmax(scores.div_(self._temperatures[:, None]), dim=-1)
        flat: Tensor | None = None
        if (limit := self._top_k) is not None:
            limit.cut(probs, partial(top_k_threshold, most=int(limit.most)))
        if self._top_p is not None:
            flat = self._top_p.cut(probs, partial(top_p_threshold, whole=whole))
        if self._min_p is not None:
            self._min_p.cut(probs, min_p_threshold)
        drawn = _invert(probs, self._numbers)
        return drawn if flat is None else drawn.masked_fill_(flat, FLAT)


class Sampling:
    """One token for each row: greedy at temperature 0 (ties: lowest id), else drawn. Made before
    there are logits, so that what rows ask for is sent with the step.

    A drawn token depends only on its row's logits, parameters, seed and number of tokens.
    """

    def __init__(self, rows: Sequence[ScheduledRow], vocab: int, sending: Sending) -> None:
        self._sending = sending
        self._changed = LogitChanges(rows, vocab, sending)
        drawn = [i for i, row in enumerate(rows) if not row.request.params.greedy]
        # Drawing makes a few copies of the logits: bounded, some rows at a time.
        block = max(1, BLOCK_BYTES // (4 * vocab))
        parts = [drawn[first : first + block] for first in range(0, len(drawn), block)]
        self._drawn = [_Drawn(rows, part, vocab, sending) for part in parts]

    def __call__(
        self, logits: Tensor, masks: Masks | None = None, *, whole: bool = False
    ) -> Tensor:
        """(rows,) int64: tokens; NOT_FINITE where a row's logits are not, which changes nothing for
        the others; FLAT where `whole` is to be asked for, see `top_p_threshold`.

        logits: (rows, vocab) float32, unchanged but for what masks forbid, which may become -inf.
        They come after bias and penalties, which so cannot bring back what is not allowed.
        """
        logits = self._changed(logits)
        if masks is not None:
            forbid(logits, *masks, self._sending)
        best = _argmax(logits)
        peaks = logits.gather(1, best[:, None])
        for part in self._drawn:
            best.index_copy_(0, part.at, part.tokens(logits, peaks, whole=whole))
        if peaks.device.type == "cpu" and isfinite(sum(peaks.flatten().tolist())):
            return best
        # Of infinity and NaN alone it is not 0; `isfinite` is four launches.
        return best.masked_fill_((peaks - peaks != 0).flatten(), NOT_FINITE)


def sample(
    logits: Tensor, rows: Sequence[ScheduledRow], masks: Masks | None = None
) -> list[int | None]:
    """The tokens of `Sampling`, None for a row whose logits are not finite."""
    if not rows:
        return []
    sampling = Sampling(rows, logits.shape[1], Sending(logits.device))
    found = sampling(logits, masks).tolist()
    if FLAT in found:
        found = sampling(logits, masks, whole=True).tolist()
    return [None if token == NOT_FINITE else token for token in found]


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
    # Where probabilities are not finite it would be none.
    block = torch.searchsorted(mass, point, right=True).clamp_(max=mass.shape[1] - 1)
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


def _rows_of(tensor: Tensor, at: Tensor) -> Tensor:
    """The rows `at`, which is rising; no copy when they are all."""
    return tensor if len(at) == len(tensor) else tensor.index_select(0, at)


def _argmax(logits: Tensor) -> Tensor:
    """(rows,) ids of the best tokens, the lowest of equals; NaN counts as best."""
    if logits.device.type == "cpu":
        # numpy's is vectorised: 0.4 ms for 64 rows of 49,152, torch's 2.9 ms.
        return torch.from_numpy(logits.numpy().argmax(-1))
    return logits.argmax(-1)


def logprobs_of(logits: Tensor, targets: Tensor, most: int) -> Tensor:
    """(rows, 1 + 2 x most) float64: log p of targets[i], those of a row's likeliest tokens, best
    first, and their ids. targets: (rows,) int64.

    logits: (rows, vocab) float32, as the model gave them: before temperature, bias or penalties.
    NaN where a row's are not finite. Equally likely tokens stand in the order of their ids. Works
    in blocks of rows, so that what it needs beside the logits stays below 64 MiB or one row.
    """
    size, most = max(1, BLOCK_BYTES // (8 * logits.shape[1])), min(most, logits.shape[1])
    if len(logits) <= size:
        return _block(logits, targets, most)
    blocks = zip(logits.split(size), targets.split(size), strict=True)
    return torch.cat([_block(*block, most) for block in blocks])


def _block(logits: Tensor, targets: Tensor, most: int) -> Tensor:
    finite = logits.amax(-1, keepdim=True).isfinite()
    best = _best(logits, most)
    # Not by logsumexp, which adds up a single row in another order than several.
    scores = logits.log_softmax(-1)
    wanted = torch.cat((targets[:, None], best), dim=1)
    values = scores.gather(1, wanted).where(finite, torch.nan)
    return torch.cat((values.double(), best), dim=1)


def entries_of(
    numbers: Sequence[Sequence[float]], targets: Sequence[int], tops: Sequence[int]
) -> tuple[TokenLogprob, ...]:
    """Name what `logprobs_of` gave, of row i the tops[i] most likely tokens."""
    made = []
    for (value, *best), target, top in zip(numbers, targets, tops, strict=True):
        values, ids = best[: len(best) // 2][:top], best[len(best) // 2 :][:top]
        made.append(TokenLogprob(target, value, tuple(zip(map(int, ids), values, strict=True))))
    return tuple(made)


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
