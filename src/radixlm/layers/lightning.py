"""Lightning attention (Qin et al., 2024): a layer whose state is a matrix for each head, to which
each token adds key x value, and which fades by a number that is the head's own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from radixlm.layers.gated_delta import by_kind
from radixlm.layers.linear import Linear
from radixlm.layers.lora import Multiply
from radixlm.layers.mlps import sigmoid
from radixlm.layers.scan_kernel import ScanShape
from radixlm.layers.scans import Scan
from radixlm.layers.state_gates import OutputGate
from radixlm.layers.state_layer import StateLayer
from radixlm.layers.step_states import StepStates
from radixlm.layers.torch_scans import ScanInputs
from radixlm.products.compiled import TensorOptions

_EPS = 1e-6  # of the norm of what is read, whatever the config says of others


class LightningSizes(NamedTuple):
    """The sizes of a layer. heads, head: of queries, keys and values, and their size. layers: of
    the model; later ones forget less. There is no convolution.
    """

    heads: int
    head: int
    layers: int
    place: str = "self_attn"
    width: int = 1
    channels: int = 0

    @property
    def matrix(self) -> tuple[int, ...]:
        """The shape of the recurrent state."""
        return self.heads, self.head, self.head

    def orders(self) -> dict[str, Tensor]:
        """Rows come by head: its queries, keys and values."""
        return {"qkv_proj": by_kind([self.head] * 3, self.heads)}

    def decay(self, layer: int) -> Tensor:
        """Logarithms of what is left of a layer's states after a token, (heads,) float32."""
        base = 2.0 ** (-8 / self.heads)
        rates = torch.tensor(base) ** torch.arange(1, self.heads + 1)
        return rates * -(1 - layer / (self.layers - 1 + 1e-5) + 1e-5)


class LightningAttention(StateLayer):
    """A layer's state and the projections around it, in place of attention."""

    def __init__(
        self, sizes: LightningSizes, layer: int, hidden: int, options: TensorOptions
    ) -> None:
        self._sizes, self._layer = sizes, layer
        inner = sizes.heads * sizes.head
        self.projections = Linear(hidden, {"qkv_proj": 3 * inner}, options, bias=False)
        self.gate = Linear(hidden, {"output_gate": inner}, options, bias=False)
        self._decay = sizes.decay(layer).to(options.device)
        self._scan = Scan(ScanShape(sizes.head, sizes.head, delta=False), options)
        self.norm = options.empty(inner)
        self._gate = OutputGate((1, inner), self.norm, "before", _EPS, options, "sigmoid")
        self.output = Linear(inner, {"out_proj": hidden}, options, bias=False)
        linears = [self.projections, self.gate, self.output]
        super().__init__(linears, {"norm.weight": self.norm})

    def __call__(self, x: Tensor, states: StepStates, multiply: Multiply) -> Tensor:
        """(tokens, hidden_size) -> (tokens, hidden_size)."""
        sizes = self._sizes
        made = multiply(self.projections, x, None).float()
        made = made.mul_(sigmoid(made)).unflatten(1, (3, sizes.heads, sizes.head))
        decay = self._decay.repeat(x.shape[0], 1)
        queries, keys, values = made.unbind(1)
        inputs = ScanInputs(queries, keys, values, decay, torch.ones_like(decay))
        read = self._scan(inputs, self._layer, states).flatten(1)
        return multiply(self.output, self._gate(read, multiply(self.gate, x, None)), None)
