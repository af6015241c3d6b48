"""Rotary frequencies, plain and stretched to contexts longer than the model was trained on.

Everything is computed in float32 and in the order of the reference implementations: at position
100,000 a last-bit difference in a frequency is already a hundredth of a radian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from radixlm.layers.few_tokens import MOST_TOKENS
from radixlm.products.compiled import TensorOptions


def plain_frequencies(theta: float, head_dim: int) -> Tensor:
    """(head_dim / 2,) radians per position, from 1 down to almost 1 / theta (Su et al., 2021)."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return 1.0 / (theta**exponents)


@dataclass(frozen=True, slots=True)
class LinearScaling:
    """Positions are squeezed by `factor` (position interpolation, Chen et al., 2023)."""

    factor: float

    def frequencies(self, theta: float, head_dim: int) -> Tensor:
        return plain_frequencies(theta, head_dim) / self.factor


@dataclass(frozen=True, slots=True)
class Llama3Scaling:
    """Slow frequencies are squeezed, fast ones kept, those between blended (Llama 3.1).

    A frequency is fast or slow by the turns it makes within `original_length`: more than
    `high_freq_factor` is fast, fewer than `low_freq_factor` is slow.
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_length: int

    def frequencies(self, theta: float, head_dim: int) -> Tensor:
        plain = plain_frequencies(theta, head_dim)
        turns = self.original_length / (2 * math.pi / plain)
        band = self.high_freq_factor - self.low_freq_factor
        keep = ((turns - self.low_freq_factor) / band).clamp(0.0, 1.0)
        return (1 - keep) * plain / self.factor + keep * plain


@dataclass(frozen=True, slots=True)
class YarnScaling:
    """Llama3Scaling's idea with the blend linear in the dimension (Peng et al., 2023).

    beta_fast, beta_slow: turns within `original_length` that make a frequency fast or slow.
    attention_factor: cos and sin are multiplied by it, so scores by its square.
    truncate: the blend begins and ends at whole dimensions.
    score_factor: what attention that knows it multiplies scores by, twice (DeepSeek).
    """

    factor: float
    original_length: int
    attention_factor: float
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True
    score_factor: float = 1.0

    def frequencies(self, theta: float, head_dim: int) -> Tensor:
        plain = plain_frequencies(theta, head_dim)
        first = self._dimension(self.beta_fast, theta, head_dim)
        last = self._dimension(self.beta_slow, theta, head_dim)
        if self.truncate:
            first, last = math.floor(first), math.ceil(last)
        first, last = max(first, 0), min(last, head_dim - 1)
        width = last - first or 0.001
        keep = 1 - ((torch.arange(head_dim // 2) - first) / width).clamp(0.0, 1.0)
        return plain / self.factor * (1 - keep) + plain * keep

    def _dimension(self, turns: float, theta: float, head_dim: int) -> float:
        """The (fractional) index of the frequency that makes `turns` in the original length."""
        wavelength = self.original_length / turns
        return head_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(theta))


@dataclass(frozen=True, slots=True)
class FactorScaling:
    """Each frequency is divided by a factor of its own: what files of llama.cpp have instead of
    Llama3Scaling's numbers. factors: head_dim / 2 of them.
    """

    factors: tuple[float, ...]

    def frequencies(self, theta: float, head_dim: int) -> Tensor:
        return plain_frequencies(theta, head_dim) / torch.tensor(self.factors)


@dataclass(frozen=True, slots=True)
class LongScaling:
    """Factors for short contexts and for long ones (LongRoPE, Ding et al., 2024): all keys of a
    request are turned by those of its length.

    short, long: half as many as the dimensions that turn. attention_factor: as YarnScaling's.
    is_long: which of them it is, see `RopeConfig.within`.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_length: int
    attention_factor: float
    is_long: bool = False

    def frequencies(self, theta: float, head_dim: int) -> Tensor:
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
        factors = self.long if self.is_long else self.short
        return 1.0 / (torch.tensor(factors) * theta**exponents)


@dataclass(frozen=True, slots=True)
class ProportionalScaling:
    """A share of a head's frequencies, the fast ones, divided by `factor`; the others are 0
    (Gemma 4).
    """

    share: float
    factor: float

    def frequencies(self, theta: float, head_dim: int) -> Tensor:
        made = plain_frequencies(theta, head_dim) / self.factor
        made[int(self.share * head_dim // 2) :] = 0
        return made


Scaling = (
    LinearScaling | Llama3Scaling | YarnScaling | FactorScaling | LongScaling | ProportionalScaling
)


class QueryFactors(NamedTuple):
    """Factors of queries that grow with their position, so that attention over long contexts stays
    sharp (Nakanishi, 2025): 1 + beta log(1 + n), n whole `length`s before position + ahead.
    """

    beta: float
    length: int
    ahead: int = 0

    def at(self, positions: Tensor) -> Tensor:
        """(tokens,) int64 -> the same, float32."""
        whole = (positions + self.ahead).div(self.length, rounding_mode="floor")
        return whole.float().log1p_().mul_(self.beta).add_(1)


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Base of the frequencies, and how they are stretched; None: not at all. share: of a head's
    dimensions, from the first, that turn. queries: what these are multiplied by; None: nothing.
    """

    theta: float
    scaling: Scaling | None = None
    share: float = 1.0
    queries: QueryFactors | None = None

    def turned(self, head_dim: int) -> int:
        """How many dimensions of a head turn."""
        return int(head_dim * self.share)

    def within(self, length: int) -> RopeConfig:
        """The same for requests of up to `length` tokens, prompt and answer."""
        its, scaling = self, self.scaling
        if self.queries is not None and length - 1 + self.queries.ahead < self.queries.length:
            its = replace(its, queries=None)
        if isinstance(scaling, LongScaling):
            is_long = length > scaling.original_length
            its = replace(its, scaling=replace(scaling, is_long=is_long))
        return its

    def short_length(self, context_length: int) -> int | None:
        """Most tokens of requests that turn their keys in another way than those of the whole
        context; None: all turn them alike.
        """
        if not isinstance(self.scaling, LongScaling):
            return None
        original = self.scaling.original_length
        return original if context_length > original else None

    def frequencies(self, head_dim: int) -> Tensor:
        """(head_dim / 2,) float32 radians per position; of what does not turn, at the end, 0."""
        turned = self.turned(head_dim)
        if self.scaling is None:
            made = plain_frequencies(self.theta, turned)
        else:
            made = self.scaling.frequencies(self.theta, turned)
        return functional.pad(made, (0, (head_dim - turned) // 2))

    @property
    def attention_factor(self) -> float:
        its = self.scaling
        return its.attention_factor if isinstance(its, YarnScaling | LongScaling) else 1.0

    @property
    def score_factor(self) -> float:
        return self.scaling.score_factor if isinstance(self.scaling, YarnScaling) else 1.0


class Rotation(NamedTuple):
    """The rotation of each of a step's tokens, gathered once and used by every layer.

    table: (tokens, head_dim), contiguous, of each token the cosines and then the sines of its
    angles. factors: (tokens,) float32, of each token's queries, see `QueryFactors`; None: 1.
    """

    table: Tensor
    factors: Tensor | None = None

    def turned(self, x: Tensor) -> Tensor:
        """x: (tokens, heads, head_dim) -> the same, new: pairs (i, i + head_dim / 2) turned."""
        cos, sin = self.table.unsqueeze(1).chunk(2, dim=-1)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def multiplied(self, q: Tensor) -> Tensor:
        """Queries (tokens, heads, head_dim) by their factors."""
        return q if self.factors is None else (q * self.factors[:, None, None]).to(q.dtype)


class Rotary:
    """cos and sin of every position below `context_length`, computed once in float32; behind them,
    from position `context_length` on, those of requests that are short (`RopeConfig.short_length`).
    rope: None: nothing turns, which one row says of all positions.
    """

    def __init__(
        self, rope: RopeConfig | None, head_dim: int, context_length: int, options: TensorOptions
    ) -> None:
        self._turns = rope is not None
        context_length = context_length if self._turns else 1
        if options.device.type == "meta":  # its arithmetic has torch import its compiler: seconds
            table = torch.empty(context_length, head_dim, device=options.device)
        else:
            table = _table(rope, head_dim, context_length)
            if rope is not None and (short := rope.short_length(context_length)) is not None:
                table = torch.cat((table, _table(rope, head_dim, short)))
        self._table = table.to(dtype=options.dtype, device=options.device)
        self._queries = None if rope is None else rope.within(context_length).queries
        self._factors: Tensor | None = None

    def at(self, positions: Tensor, out: Tensor | None = None) -> Rotation:
        """The rotations of `positions` (tokens,) int64, each in [0, context_length). out: memory
        for their table; then factors have always the same, too.
        """
        rows = positions if self._turns else torch.zeros_like(positions)
        table = torch.index_select(self._table, 0, rows, out=out)
        factors = None if self._queries is None else self._queries.at(positions)
        if out is not None and factors is not None:
            if self._factors is None:
                self._factors = factors.new_empty(MOST_TOKENS)
            factors = self._factors[: factors.numel()].copy_(factors)
        return Rotation(table, factors)


def _table(rope: RopeConfig | None, head_dim: int, context_length: int) -> Tensor:
    """(context_length, head_dim): of each position the cosines and then the sines, for requests of
    that length.
    """
    rope = None if rope is None else rope.within(context_length)
    turned = 0 if rope is None else rope.turned(head_dim) // 2
    frequencies = torch.zeros(head_dim // 2) if rope is None else rope.frequencies(head_dim)
    angles = torch.outer(torch.arange(context_length, dtype=torch.float32), frequencies)
    table = torch.empty(context_length, head_dim)
    for function, part in zip((torch.cos, torch.sin), table.chunk(2, dim=-1), strict=True):
        # MKL picks its code in the first call; of several threads that come first at once
        # one may be given a coarse one (pytorch issue 188792).
        function(angles[:1, :1])
        function(angles, out=part)
        if rope is not None:
            part[:, :turned].mul_(rope.attention_factor)
    return table
