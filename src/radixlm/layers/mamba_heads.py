"""Mamba in heads (Zamba): each makes steps, keys and queries of its own channels."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from radixlm.layers.causal_conv import CausalConv
from radixlm.layers.linear import Linear
from radixlm.layers.lora import Multiply
from radixlm.layers.mamba1 import Mamba1Sizes
from radixlm.layers.selective_scan import SelectiveInputs, SelectiveScan
from radixlm.layers.state_layer import StateLayer
from radixlm.layers.step_states import StepStates
from radixlm.products.compiled import TensorOptions


class MambaHeads(StateLayer):
    """See `Mamba1`. The small products are each head's own, in one tensor."""

    def __init__(self, sizes: Mamba1Sizes, layer: int, hidden: int, options: TensorOptions) -> None:
        self._layer, self._heads, inner = layer, sizes.heads, sizes.channels
        self._parts, shape = (sizes.rank, sizes.key, sizes.key), (sizes.heads, inner // sizes.heads)
        self.projections = Linear(hidden, {"in_proj": 2 * inner}, options, bias=sizes.bias)
        self.conv = CausalConv(inner, sizes.width, options, bias=sizes.conv_bias)
        self.inputs = options.empty(shape[0], sum(self._parts), shape[1])
        self.steps, self.bias = options.empty(*shape, sizes.rank), options.empty(*shape)
        exact = TensorOptions(torch.float32, options.device)
        self.decay, self.skip = exact.empty(*shape, sizes.key), exact.empty(*shape)
        self._scan = SelectiveScan(sizes.key, options)
        self.output = Linear(inner, {"out_proj": hidden}, options, bias=sizes.bias)
        own = {"A_log": self.decay, "D": self.skip, "x_proj_weight": self.inputs}
        own |= {"dt_proj_weight": self.steps, "dt_proj_bias": self.bias}
        super().__init__([self.projections, self.output], own, conv1d=self.conv)

    def __call__(self, x: Tensor, states: StepStates, multiply: Multiply) -> Tensor:
        """(tokens, hidden_size) -> (tokens, hidden_size)."""
        mixed, gate = multiply(self.projections, x, None).chunk(2, dim=1)
        values = self.conv(mixed, self._layer, states)
        of_heads = values.to(x.dtype).unflatten(1, (self._heads, -1)).transpose(0, 1)
        parts = torch.bmm(of_heads, self.inputs.mT).split_with_sizes(self._parts, 2)
        step = torch.bmm(parts[0], self.steps.mT).transpose(0, 1) + self.bias
        keys, queries = (part.transpose(0, 1).float() for part in parts[1:])
        step = functional.softplus(step.flatten(1).float())
        inputs, decay = SelectiveInputs(values, step, queries, keys), self.decay.flatten(0, 1)
        read = self._scan(inputs, decay.exp().neg(), self._layer, states)
        made = read.addcmul_(values, self.skip.flatten()) * functional.silu(gate.float())
        return multiply(self.output, made.to(x.dtype), None)
