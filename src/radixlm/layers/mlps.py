"""The part of a layer after attention: two products, with a gate or an activation between."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional

from radixlm.layers.linear import Linear
from radixlm.layers.lora import Multiply
from radixlm.products.compiled import GATES, GELU_CUBIC, GELU_TWICE, GateKind, TensorOptions


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e^-x), new. On a CPU torch's own gives the last numbers of a tensor, which fill no
    vector, other bits than those before them.
    """
    if x.device.type != "cpu":
        return x.sigmoid()
    return x.float().neg().exp_().add_(1).reciprocal_().to(x.dtype)


def _relu2(x: Tensor) -> Tensor:
    return functional.relu(x).square_()


def _gelu(x: Tensor) -> Tensor:
    """Rows that lie apart torch computes with other bits than one alone."""
    return functional.gelu(x.contiguous())


def _silu(x: Tensor) -> Tensor:
    """See `sigmoid`."""
    if x.device.type != "cpu":
        return GATES["silu"](x)
    wide = x.float()
    return sigmoid(wide).mul_(wide).to(x.dtype)


def _gelu_tanh(x: Tensor) -> Tensor:
    """x (1 + tanh(z)) / 2 = x sigmoid(2z), see `sigmoid`."""
    if x.device.type != "cpu":
        return GATES["gelu_tanh"](x)
    wide = x.float()
    twice = (wide * wide).mul_(GELU_CUBIC).add_(1).mul_(wide).mul_(GELU_TWICE)
    return sigmoid(twice).mul_(wide).to(x.dtype)


ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = MappingProxyType(
    {"silu": _silu, "gelu_tanh": _gelu_tanh, "gelu": _gelu, "relu2": _relu2}
)


class Clamped(NamedTuple):
    """gate sigmoid(alpha gate) (up + 1), the gate at most `limit`, up from -limit to limit."""

    alpha: float
    limit: float

    def __call__(self, gate: Tensor, up: Tensor) -> Tensor:
        gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return gate.mul_(sigmoid(gate * self.alpha)).mul_(up.add_(1))


class XIELU:
    """An activation with weights: a parabola above 0, an integrated ELU below (Huang and Schlag,
    2024).
    """

    def __init__(self, options: TensorOptions) -> None:
        exact = TensorOptions(torch.float32, options.device)
        self._above, self._below = exact.empty(1), exact.empty(1)
        self._slope, self._most = exact.empty(), exact.empty()

    def __call__(self, x: Tensor) -> Tensor:
        """(tokens, size) -> the same, new."""
        wide, slope = x.float(), self._slope
        below = torch.expm1(torch.minimum(wide, self._most)).sub_(wide)
        below.mul_(functional.softplus(self._below) + slope)
        above = (wide * wide).mul_(functional.softplus(self._above))
        return torch.where(wide > 0, above, below).add_(wide * slope).to(x.dtype)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from (("act_fn.alpha_p", self._above), ("act_fn.alpha_n", self._below))
        yield from (("act_fn.beta", self._slope), ("act_fn.eps", self._most))


def _between(activation: str | Clamped | XIELU, *, gated: bool) -> Callable[[Tensor], Tensor]:
    """Apply the gate to both halves of a row, or the activation to all of it."""
    if isinstance(activation, Clamped):
        return lambda made: activation(*made.chunk(2, dim=-1))
    if isinstance(activation, XIELU):
        return activation
    of_gate = ACTIVATIONS[activation]
    if not gated:
        return of_gate

    def between(made: Tensor) -> Tensor:
        gate, up = made.chunk(2, dim=-1)
        return of_gate(gate).mul_(up)

    return between


class MLP:
    """down(act(gate(x)) * up(x)), gate and up being one product, or down(act(up(x))) without gates.

    gate_up: the names of gate and up, of one tensor with both, or of up alone, in one place. One
    of `GATES` is part of the product; xielu has weights in the same place.
    """

    def __init__(
        self,
        hidden_size: int,
        size: int,
        options: TensorOptions,
        *,
        bias: bool,
        gate_up: Sequence[str] = ("gate_proj", "up_proj"),
        down: str = "down_proj",
        gated: bool = True,
        activation: str | Clamped = "silu",
    ) -> None:
        rows = (2 * size if gated else size) // len(gate_up)
        gate = cast("GateKind", activation) if gated and activation in GATES else None
        parts = {name.rpartition(".")[2]: rows for name in gate_up}
        self.gate_up = Linear(hidden_size, parts, options, bias=bias, gate=gate)
        self.down = Linear(size, {down.rpartition(".")[2]: hidden_size}, options, bias=bias)
        self._places = place_of(gate_up[0]), place_of(down)
        self._xielu = XIELU(options) if activation == "xielu" else None
        between = self._xielu or activation
        self._between = _between(between, gated=gated) if gate is None else None

    @property
    def is_compiled(self) -> bool:
        """Whether it is nothing but calls of workers."""
        return self._between is None and self.gate_up.is_compiled and self.down.is_compiled

    def __call__(
        self,
        x: Tensor,
        gated: Tensor | None = None,
        out: Tensor | None = None,
        multiply: Multiply = Linear.__call__,
    ) -> Tensor:
        """(tokens, hidden_size) -> (tokens, hidden_size). gated, out: where what is between and the
        result are to be, see `Linear`. multiply: what computes products.
        """
        if self._between is not None:
            gated = out = None
        return multiply(self.down, self.between(multiply(self.gate_up, x, gated)), out)

    def between(self, made: Tensor) -> Tensor:
        """The second product's input, made of the first one's result."""
        return made if self._between is None else self._between(made)

    def linears(self) -> Iterator[tuple[str, Linear]]:
        """The projections in the order in which they are computed, and where their names begin."""
        yield from zip(self._places, (self.gate_up, self.down), strict=True)

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        yield from named(self.linears())
        if self._xielu is not None:
            yield from self._xielu.named_weights()


def named(linears: Iterator[tuple[str, Linear]]) -> Iterator[tuple[str, Tensor]]:
    """The weights of products, with where their names begin."""
    for place, linear in linears:
        yield from ((place + name, weight) for name, weight in linear.named_weights())


def place_of(name: str) -> str:
    """`experts.3.` of `experts.3.down_proj`."""
    return name[: name.rfind(".") + 1]
