"""Attention that modules of transformers compute by themselves: scores as a product of queries and
keys, softmax, a product with values.

What they do to scores in between is learned when they are asked with a few tokens, from scores that
are known: a factor, and how much a head's scores grow with a key's position (ALiBi). Later nothing
in between is computed: the second product is `Bridge`'s answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from radixlm.models.transformers_attention import Bridge

# Which masks modules are given, by transformers' table.
OWN = "radixlm_own"
# The number of tokens that they are asked with.
ASKED = 4
# Numbers that ALiBi adds to each head: a position has two digits, a slope two parts, so that both
# are exact in 16 bits, for as many positions.
DIGITS = 4
_BASE = 256
MOST_POSITIONS = _BASE * (_BASE + 1)
_PRODUCTS = frozenset({"matmul", "__matmul__", "bmm", "baddbmm"})
_ABOUT_SHAPES = frozenset({"view", "reshape", "size", "dim", "__get__"})
# Less than any score that is no mask.
_MASKED = -5_000.0


class _Scores(Tensor):
    """Scores or weights of queries and keys: of known numbers while a model is asked, later of none
    (on the device meta).
    """

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]
    of: tuple[Tensor, Tensor]


class _Form(NamedTuple):
    """The change from products to scores: scale, then slopes (heads,) x position of the key."""

    scale: float
    slopes: Tensor | None
    causal: bool = True


class OwnAttention(TorchFunctionMode):
    """Functions of torch as modules call them in one step, save for those of attention.

    alibi: whether scores grow with positions. kv_heads: how many heads keys and values have at
    most, before modules repeat them for each group of queries.
    """

    def __init__(self, bridge: Bridge, *, alibi: bool, kv_heads: int) -> None:
        super().__init__()
        self._bridge, self._alibi, self._kv_heads = bridge, alibi, kv_heads
        self._forms: list[_Form] = []
        self._layer, self._tokens = 0, 0
        self._digits = torch.empty(0, DIGITS)

    def begin(self, positions: Tensor) -> None:
        """Begin a step. positions: (tokens,) int64."""
        self._layer, self._tokens = 0, positions.shape[0]
        if self._alibi:
            digits = torch.stack([positions // _BASE, positions % _BASE], dim=1)
            self._digits = digits.repeat(1, DIGITS // 2)

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs, name = kwargs or {}, func.__name__
        scores = next((each for each in args if isinstance(each, _Scores)), None)
        if name in _PRODUCTS:
            if scores is not None:
                return self._answered(scores, args[-1])
            given = [*args, *(kwargs[its] for its in ("batch1", "batch2") if its in kwargs)]
            queries, keys = given[-2:]
            if self._are_scores(queries, keys):
                return self._scores(queries, keys, given[:-2], kwargs)
        if name == "scaled_dot_product_attention":
            return self._answered(self._whole(*args, **kwargs), args[2])
        if scores is None:
            return func(*args, **kwargs)
        if name == "softmax" or not (self._asked or name in _ABOUT_SHAPES):
            return scores
        made = func(*args, **kwargs)
        return _scores_of(made, *scores.of) if isinstance(made, Tensor) else made

    @property
    def _asked(self) -> bool:
        return self._bridge.attend is None

    def _are_scores(self, queries: Tensor, keys: Tensor) -> bool:
        """Whether a product is that of queries and keys: no weight, and a number for each pair of
        tokens.
        """
        if min(queries.dim(), keys.dim()) < 3 or queries.shape[-1] < 2:
            return False
        return queries.shape[-2] == keys.shape[-1] == self._tokens

    def _scores(
        self, queries: Tensor, keys: Tensor, added: Sequence[Tensor], named: Mapping[str, Any]
    ) -> _Scores:
        """queries: (.., tokens, head_dim). keys: (.., head_dim, tokens)."""
        before = torch.broadcast_shapes(queries.shape[:-2], keys.shape[:-2])
        of, shape = (queries, keys.transpose(-1, -2)), (*before, self._tokens, self._tokens)
        if not self._asked:
            return _scores_of(queries.new_empty(shape, device="meta"), *of)
        made = torch.zeros(shape, device=queries.device)
        made[..., 1] = named.get("alpha", 1)
        for its in added:
            made = made + named.get("beta", 1) * its
        return _scores_of(made, *of)

    def _whole(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,  # noqa: ARG002 - torch's signature
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        scale: float | None = None,
        **_: Any,
    ) -> _Scores:
        """Scores of a function for all of attention."""
        scores = self._scores(queries, keys.transpose(-1, -2), (), {})
        if not self._asked:
            return scores
        made: Tensor = scores * (queries.shape[-1] ** -0.5 if scale is None else scale)
        if attn_mask is None and is_causal:
            attn_mask = torch.ones_like(made, dtype=torch.bool).tril()
        if attn_mask is not None:
            unseen = attn_mask.dtype == torch.bool
            made = made.masked_fill(~attn_mask, -math.inf) if unseen else made + attn_mask
        return _scores_of(made, *scores.of)

    def _answered(self, scores: _Scores, values: Tensor) -> Tensor:
        """values: (.., heads, tokens, head_dim) -> the same shape, with the heads of queries."""
        flat = values.dim() == 3
        queries, keys, values = (
            each if each.dim() == 4 else each[None] for each in (*scores.of, values)
        )
        queries, keys = queries.to(values.dtype), keys.to(values.dtype)
        group = max(keys.shape[1] // self._kv_heads, 1)
        keys, values = keys[:, ::group], values[:, ::group]
        if self._asked:
            self._forms.append(_learned(scores, queries.shape[1]))
        form = self._forms[self._layer]
        self._layer += 1
        scale = form.scale
        if self._alibi:
            queries, keys = self._with_positions(queries, keys, form)
            scale = queries.shape[-1] ** -0.5
        elif form.slopes is not None:
            raise ValueError("scores grow with positions, which is not said by the config")
        made = self._bridge(queries, keys, values, scale, {"is_causal": form.causal})
        return made[0].transpose(0, 1) if flat else made.transpose(1, 2)

    def _with_positions(self, queries: Tensor, keys: Tensor, form: _Form) -> tuple[Tensor, Tensor]:
        """Queries and keys of more numbers, whose products are scores with what ALiBi adds, and
        that attention divides by the root of their number.
        """
        heads, tokens, size = queries.shape[1:]
        root = math.sqrt(size + DIGITS)
        slopes = form.slopes
        if slopes is None:
            slopes = torch.zeros(heads, device=queries.device)
        longer = slopes[:, None] * root * queries.new_tensor([_BASE, 1], dtype=torch.float32)
        rounded = longer.to(queries.dtype)
        digits = torch.cat([rounded, (longer - rounded).to(queries.dtype)], dim=1)
        queries = (queries.float() * (form.scale * root)).to(queries.dtype)
        its = self._digits.to(keys.dtype).expand(1, keys.shape[1], tokens, DIGITS)
        return (
            torch.cat([queries, digits[None, :, None].expand(1, heads, tokens, DIGITS)], dim=-1),
            torch.cat([keys, its], dim=-1),
        )


def no_mask(batch_size: int, q_length: int, kv_length: int, **_: Any) -> Tensor:
    """A mask, called as transformers makes masks, that nothing is computed with either."""
    return torch.empty(batch_size, 1, q_length, kv_length, device="meta").as_subclass(_Scores)


def _scores_of(numbers: Tensor, queries: Tensor, keys: Tensor) -> _Scores:
    made = numbers.as_subclass(_Scores)
    made.of = queries, keys
    return made


def _learned(scores: Tensor, heads: int) -> _Form:
    """The form by which scores were made of 0, 1, 0, 0 for each token. Raises ValueError."""
    if scores.is_meta:
        return _Form(1.0, None)
    made = scores.as_subclass(Tensor).reshape(-1, ASKED, ASKED).double()
    last = made[:, -1] - made[:, -1, :1]
    slopes, scales = last[:, 2] / 2, last[:, 1] - last[:, 2] / 2
    scale = scales[0].item()
    expected = slopes[:, None] * torch.arange(ASKED, device=made.device)
    expected[:, 1] += scale
    if not torch.allclose(last, expected, rtol=1e-2, atol=1e-6):
        raise ValueError("scores are changed by more than a factor and positions")
    later = torch.ones(ASKED, ASKED, dtype=torch.bool, device=made.device).triu(1)
    causal = bool((made[:, later] < _MASKED).all())
    grow = bool(slopes.abs().max() > 1e-6)
    return _Form(scale, slopes.float().expand(heads) if grow else None, causal)
