"""Recurrences whose state is a matrix for each head, which fades: each token adds key x change to
it, and reads what its query finds. By the delta rule the change corrects what the key reads.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from radixlm.kernels.openmp import Worker
from radixlm.layers.channel_scans import scan_channels
from radixlm.layers.scan_kernel import LEAST, ScanShape, scan_kernel
from radixlm.layers.step_states import NOWHERE, StepStates
from radixlm.layers.torch_scans import CHUNK, ScanInputs, scan, step
from radixlm.products.compiled import TensorOptions


class Scan:
    """The way of a step's tokens through the states of a layer.

    skip: (heads,) float32, how much of its values a token reads beside the state; filled later.
    """

    def __init__(
        self, shape: ScanShape, options: TensorOptions, skip: Tensor | None = None
    ) -> None:
        self._shape, self._skip = shape, skip
        self._worker: Worker | None = None
        if options.known():
            skip_at = 0 if skip is None else skip.data_ptr()
            self._worker = Worker(scan_kernel(shape), skip=skip_at)

    def __call__(self, inputs: ScanInputs, layer: int, states: StepStates) -> Tensor:
        """Take the tokens through their states, which go on; gives what queries read, (tokens,
        heads, value) float32, new.
        """
        kept = states.matrices[layer]
        if self._worker is None:
            return self._by_torch(inputs, kept, states)
        queries, keys, values, decay, beta = inputs
        read = values.new_empty(values.shape)
        heads, arguments = values.shape[1], self._worker.arguments
        arguments.rows, arguments.table = heads * states.rows, states.table.data_ptr()
        arguments.heads, arguments.repeats = heads, heads // keys.shape[1]
        arguments.queries, arguments.keys = queries.data_ptr(), keys.data_ptr()
        arguments.values, arguments.stride = values.data_ptr(), 4 * values.stride(0)
        arguments.decay, arguments.beta = decay.data_ptr(), beta.data_ptr()
        arguments.states, arguments.slot = kept.data_ptr(), 4 * kept.stride(0)
        arguments.read = read.data_ptr()
        self._worker()
        return read

    def _by_torch(self, inputs: ScanInputs, kept: Tensor, states: StepStates) -> Tensor:
        queries, keys, values, decay, beta = inputs
        if self._shape.delta:
            queries, keys = _unit(queries) * self._shape.key**-0.5, _unit(keys)
        repeats = values.shape[1] // keys.shape[1]
        queries, keys = (each.repeat_interleave(repeats, 1) for each in (queries, keys))
        inputs = ScanInputs(queries, keys, values, decay, beta)
        made, alone, delta = torch.empty_like(values), states.single, self._shape.delta
        if alone.numel():
            read = step(inputs.of(alone), kept[states.slots], delta=delta)
            made[alone], kept[states.slots] = read
        of_row = scan_channels if self._shape.by_channel else partial(scan, delta=delta)
        for first, stop, position, slot, copy in states.longer:
            its = inputs.of(slice(first, stop))
            made[first:stop], kept[slot] = of_row(its, kept[slot], position % CHUNK)
            if copy != NOWHERE:
                kept[copy] = kept[slot]
        return made if self._skip is None else made.addcmul_(values, self._skip[:, None])


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt(x.square().sum(-1, keepdim=True) + LEAST)
