"""Modules of transformers that others here replace: products in the way that is fastest on this
machine, and norms that are one pass instead of six of torch's.

Which module is such a norm is found by asking it: it gives what ours gives.
"""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from radixlm.layers.linear import Linear, RMSNorm
from radixlm.models.transformers_source import refused
from radixlm.products.compiled import TensorOptions
from radixlm.products.gemm_choice import Choose

# What a norm is asked: rows of this spread, some so small that its epsilon counts.
_SPREADS = (1e-3, 1.0, 30.0)
_EPSILONS = ("variance_epsilon", "eps", "epsilon")


class _Packed(nn.Module):
    """A product."""

    def __init__(self, weight: Tensor, bias: Tensor | None, choose: Choose) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        options = TensorOptions(weight.dtype, weight.device)
        self._linear = Linear(inputs, {"product": outputs}, options, bias=bias is not None)
        self._linear.weight.copy_(weight)
        if self._linear.bias is not None and bias is not None:
            self._linear.bias.copy_(bias)
        self._linear.pack(choose)

    def forward(self, x: Tensor) -> Tensor:
        made = self._linear(x.reshape(-1, x.shape[-1]))
        return made.view(*x.shape[:-1], made.shape[-1])


class _Norm(nn.Module):
    """A norm of the last dimension, whatever the others are."""

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        options = TensorOptions(weight.dtype, weight.device)
        self._norm = RMSNorm(weight.numel(), eps, options)
        self._norm.weight.copy_(weight)

    @property
    def weight(self) -> Tensor:
        """Modules around it may ask for its type, which is not always that of what comes in."""
        return self._norm.weight

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1]).to(self.weight.dtype).contiguous()
        return self._norm(flat).view(x.shape).to(x.dtype)


@torch.no_grad()
def replace_modules(model: nn.Module, choose: Choose) -> None:
    """Replace modules of a loaded model, one by one: a product's memory is freed before the next is
    packed. Raises UnsupportedModelError for a module without source code.
    """
    sources: dict[type, str] = {}
    for parent in list(model.modules()):
        kind = type(parent)
        if kind not in sources:
            try:
                sources[kind] = inspect.getsource(kind.forward)
            except (OSError, TypeError):  # only that says what a module does with its weights
                why = f"the source code of its {kind.__name__} is not there"
                raise refused(type(model).__name__, why) from None
        for name, child in list(parent.named_children()):
            its: Any = child
            if f"self.{name}.weight" in sources[kind]:
                continue  # a router that multiplies by itself
            if type(child) is nn.Linear:
                setattr(parent, name, _Packed(child.weight, child.bias, choose))
            elif type(child).__name__ == "Conv1D":  # GPT-2's: (in, out)
                setattr(parent, name, _Packed(its.weight.t(), its.bias, choose))
            elif (norm := _norm_like(child)) is not None:
                setattr(parent, name, norm)


def _norm_like(module: nn.Module) -> _Norm | None:
    """Ours, if it gives what this module gives."""
    parameters = dict(module.named_parameters())
    weight, others = parameters.pop("weight", None), [*module.children(), *module.buffers()]
    if weight is None or weight.dim() != 1 or parameters or others:
        return None
    eps = [value for name in _EPSILONS if isinstance(value := getattr(module, name, None), float)]
    if len(eps) != 1 or len(inspect.signature(module.forward).parameters) != 1:
        return None
    made = _Norm(weight, eps[0])
    generator = torch.Generator().manual_seed(0)
    for spread in _SPREADS:
        x = torch.randn(1, 3, weight.numel(), generator=generator).mul_(spread).add_(spread)
        x = x.to(weight.dtype).to(weight.device)
        wanted: Tensor = module(x)
        # Sums in another order, rounded twice.
        apart = 4 * torch.finfo(x.dtype).eps
        if wanted.dtype != x.dtype or not torch.allclose(made(x), wanted, rtol=apart, atol=1e-6):
            return None
    return made
