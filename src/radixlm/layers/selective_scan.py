"""The recurrence of Mamba (Gu and Dao, 2023): each channel has a state of its own, whose numbers
fade by as much as the token's step in that channel says.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from radixlm.kernels.openmp import Worker
from radixlm.layers.selective_kernel import CHANNELS, MOST_NUMBERS, selective_kernel
from radixlm.layers.step_states import NOWHERE, StepStates
from radixlm.products.compiled import TensorOptions

# Tokens of which what fades and what is added is computed at once.
_PIECE = 16


class SelectiveInputs(NamedTuple):
    """The inputs of tokens, float32. values, steps: (tokens, channels). queries, keys: (tokens,
    heads, key), each those of several channels in a row.
    """

    values: Tensor
    steps: Tensor
    queries: Tensor
    keys: Tensor

    def of(self, tokens: Tensor | slice) -> SelectiveInputs:
        """Take those of some tokens."""
        return SelectiveInputs(*(each[tokens] for each in self))

    def changes(self, decay: Tensor) -> tuple[Tensor, Tensor]:
        """Factors by which each token fades a state, and what it adds: (tokens, channels, key)."""
        each = (self.steps * self.values).unflatten(1, (self.keys.shape[1], -1))
        added = (each[..., None] * self.keys[:, :, None]).flatten(1, 2)
        return (self.steps[..., None] * decay).exp_(), added

    def read(self, states: Tensor) -> Tensor:
        """Apply queries to states (tokens, channels, key): (tokens, channels)."""
        of_heads = states.unflatten(1, (self.queries.shape[1], -1))
        read: Tensor = of_heads @ self.queries[..., None]
        return read[..., 0].flatten(1)


class SelectiveScan:
    """The way of a step's tokens through the states of a layer's channels, of `key` numbers."""

    def __init__(self, key: int, options: TensorOptions) -> None:
        self._worker: Worker | None = None
        if options.known() and key <= MOST_NUMBERS:
            self._worker = Worker(selective_kernel(key))

    def __call__(
        self, inputs: SelectiveInputs, decay: Tensor, layer: int, states: StepStates
    ) -> Tensor:
        """Take the tokens through their states, which go on; gives what queries read, (tokens,
        channels), new. decay: of a step of 1, logarithms, (channels, key).
        """
        kept = states.matrices[layer]
        if self._worker is None:
            return _by_torch(inputs, decay, kept, states)
        inputs = SelectiveInputs(*(each.contiguous() for each in inputs))
        values, steps, queries, keys = inputs
        read, channels = torch.empty_like(values), values.shape[1]
        arguments, blocks = self._worker.arguments, -(-channels // CHANNELS)
        arguments.rows, arguments.table = blocks * states.rows, states.table.data_ptr()
        arguments.channels, arguments.repeats = channels, channels // keys.shape[1]
        arguments.queries, arguments.keys = queries.data_ptr(), keys.data_ptr()
        arguments.stride = 4 * keys.stride(0)
        arguments.values, arguments.steps = values.data_ptr(), steps.data_ptr()
        arguments.decay, arguments.read = decay.data_ptr(), read.data_ptr()
        arguments.states, arguments.slot = kept.data_ptr(), 4 * kept.stride(0)
        self._worker()
        return read


def _by_torch(inputs: SelectiveInputs, decay: Tensor, kept: Tensor, states: StepStates) -> Tensor:
    made, alone = torch.empty_like(inputs.values), states.single
    if alone.numel():
        its = inputs.of(alone)
        left, added = its.changes(decay)
        after = added.addcmul_(kept[states.slots], left)
        kept[states.slots] = after
        made[alone] = its.read(after)
    for first, stop, _, slot, copy in states.longer:
        made[first:stop], kept[slot] = selective_scan(
            inputs.of(slice(first, stop)), decay, kept[slot]
        )
        if copy != NOWHERE:
            kept[copy] = kept[slot]
    return made


def selective_scan(inputs: SelectiveInputs, decay: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
    """Take the tokens of one row through its state (channels, key), one by one: wherever they are
    cut, bits are the same. Gives what they read (tokens, channels), and the state after them.
    """
    made = []
    for first in range(0, inputs.values.shape[0], _PIECE):
        its = inputs.of(slice(first, first + _PIECE))
        left, states = its.changes(decay)
        for here, fading in zip(states, left, strict=True):
            state = here.addcmul_(state, fading)
        made.append(its.read(states))
    return torch.cat(made), state
