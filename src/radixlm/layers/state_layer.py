"""A base of the layers that have a state in place of attention."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from torch import Tensor

from radixlm.layers.causal_conv import CausalConv
from radixlm.layers.linear import Linear


class StateLayer:
    """A layer's state and the projections around it, in place of attention."""

    is_compiled = False

    def __init__(
        self, linears: list[Linear], own: Mapping[str, Tensor], **convs: CausalConv
    ) -> None:
        """linears: in the order in which they are computed. own: weights beside theirs and those of
        convolutions, by name.
        """
        self._linears, self._own, self._convs = linears, own, convs

    def linears(self) -> list[Linear]:
        """The projections in the order in which they are computed."""
        return self._linears

    def named_weights(self) -> Iterator[tuple[str, Tensor]]:
        for linear in self._linears:
            yield from linear.named_weights()
        for name, conv in self._convs.items():
            yield from conv.named_weights(name)
        yield from self._own.items()
