"""Weights in 2 to 8 bits: what formats of checkpoints are made into, and made from full precision.

    weight[o, i] = scales[o, i // group] * (codes[o, i] - zero) + offsets[o, i // group]

Of weights in *floats* a code is not the number itself but stands for one: E4M3 in 8 bits, and in 4
bits one of 16: of E2M1, 0 to 6 and -0 to -6 (OCP Microscaling Formats, 5.3), of NF4, quantiles of a
normal distribution (Dettmers et al., 2023), or of bitsandbytes' FP4. Else codes are unsigned,
since that is what processors multiply with signed activations; those of IQ4 stand for 16 integers.
A group is a stretch of a row's inputs; scales and offsets are float32 here, whatever they are
computed with.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from radixlm.core.errors import CheckpointError

# By bits: the code of 0 of symmetric weights.
MIDDLE = {8: 128, 4: 8}
# What codes are: integers, codes of uneven integers, or floats in 4 or 8 bits.
Numbers = Literal["int", "iq4", "e2m1", "nf4", "fp4", "e4m3"]
BYTES: tuple[Numbers, ...] = ("int", "iq4")
_LEVELS_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635),
    *(-0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725),
    *(0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941),
    *(0.7229568362236023, 1.0),
)


def _signed(*levels: float) -> tuple[float, ...]:
    return tuple(sign * level for sign in (1, -1) for level in levels)


# What the codes of 4 bits stand for.
LEVELS: Mapping[Numbers, tuple[float, ...]] = {
    "e2m1": _signed(0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0),
    "nf4": _LEVELS_NF4,
    "fp4": _signed(0.0, 0.0625 / 12, 8 / 12, 1.0, 4 / 12, 6 / 12, 2 / 12, 3 / 12),
    "iq4": (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
}
_FILLED_AT_ONCE = 1 << 20


class WeightKind(NamedTuple):
    """The properties that weights share which are stacked by rows."""

    bits: int
    group: int
    offsets: bool
    numbers: Numbers
    block: int = 0


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """codes: (out, in) uint8, below 2^bits. scales: (out, in / group) float32. offsets: likewise,
    or None where all are 0. zero: the code of 0, but for the offsets; of what is no integer 0.
    steps: (out, in / block, 1 or 2) float32, numbers of 16 bits of which a block's scales, and
    offsets, are multiples by signed bytes; None: they are not.
    """

    codes: Tensor
    scales: Tensor
    offsets: Tensor | None
    bits: int
    zero: int
    numbers: Numbers = "int"
    steps: Tensor | None = None

    @property
    def shape(self) -> tuple[int, int]:
        outputs, inputs = self.codes.shape
        return outputs, inputs

    @property
    def group(self) -> int:
        """Inputs that share a scale."""
        return self.codes.shape[1] // self.scales.shape[1]

    @property
    def block(self) -> int:
        """Inputs whose scales are multiples of one step; 0: there are no steps."""
        return 0 if self.steps is None else self.codes.shape[1] // self.steps.shape[1]

    @property
    def are_bytes(self) -> bool:
        """Whether codes stand for integers that fit a byte, so that rows in bytes multiply them."""
        return self.numbers in BYTES

    @property
    def is_whole(self) -> bool:
        """Whether a scale per output is all that there is."""
        return self.offsets is None and self.scales.shape[1] == 1

    @property
    def kind(self) -> WeightKind:
        offsets = self.offsets is not None
        return WeightKind(self.bits, self.group, offsets, self.numbers, self.block)

    def dequantized(self) -> Tensor:
        """(out, in) float32."""
        outputs, groups = self.scales.shape
        if self.numbers == "int":
            made = self.codes.float().sub_(self.zero)
        elif self.numbers == "e4m3":
            made = e4m3(self.codes)
        else:
            levels = torch.tensor(LEVELS[self.numbers], device=self.codes.device).float()
            made = levels[self.codes.long()]
        made = made.view(outputs, groups, -1).mul_(self.scales.unsqueeze(2))
        if self.offsets is not None:
            made.add_(self.offsets.unsqueeze(2))
        return made.view(self.codes.shape)

    def fill(self, memory: Tensor) -> None:
        """Write what it stands for into memory, (out, in), on whatever device that is: codes are
        moved there first. Some rows at a time: in float32 all of an embedding would be gigabytes.
        """
        step = max(_FILLED_AT_ONCE // max(memory.shape[1], 1), 1)
        for start in range(0, memory.shape[0], step):
            rows = slice(start, start + step)
            memory[rows] = self.rows(rows).on(memory.device).dequantized()

    def on(self, device: torch.device) -> QuantizedWeight:
        return self._each(lambda part: part.to(device))

    def rows(self, order: Tensor | slice) -> QuantizedWeight:
        """Some outputs, or all in another order."""
        return self._each(lambda part: part[order])

    def _each(self, change: Callable[[Tensor], Tensor]) -> QuantizedWeight:
        offsets, steps = (
            None if part is None else change(part) for part in (self.offsets, self.steps)
        )
        codes, scales = change(self.codes), change(self.scales)
        return replace(self, codes=codes, scales=scales, offsets=offsets, steps=steps)

    def with_zero(self, zero: int) -> QuantizedWeight:
        """The same weights, the difference in their offsets."""
        if zero == self.zero:
            return self
        more = self.scales * (zero - self.zero)
        offsets = more if self.offsets is None else self.offsets + more
        return replace(self, offsets=offsets, zero=zero, steps=None)

    def check(self, name: str) -> None:
        """Raises CheckpointError, with the tensor's name, for codes, scales or offsets that are no
        numbers and for scales that are all 0.
        """
        if self.numbers == "e4m3" and ((self.codes & 0x7F) == 0x7F).any():
            raise CheckpointError(f"tensor {name!r} holds codes that are no numbers")
        for what, values in (("scales", self.scales), ("offsets", self.offsets)):
            if values is not None and not _ends(values).isfinite().all():
                raise CheckpointError(f"the {what} of tensor {name!r} are not all finite numbers")
        if not _ends(self.scales).any():
            raise CheckpointError(f"the scales of tensor {name!r} are all 0")


def _ends(values: Tensor) -> Tensor:
    """The least and the largest number, in one pass; of what is no number both are none."""
    return torch.stack(values.aminmax()) if values.numel() else values


def with_ones(weight: QuantizedWeight, block: int) -> QuantizedWeight:
    """The same codes with scales, offsets and steps of 1: what takes as long to multiply by."""
    ones = torch.ones_like(weight.scales)
    steps = ones.new_ones(len(ones), weight.shape[1] // block, 1 if weight.offsets is None else 2)
    offsets = None if weight.offsets is None else ones
    return replace(weight, scales=ones, offsets=offsets, steps=steps)


def e4m3(codes: Tensor) -> Tensor:
    """The float32 numbers that uint8 codes stand for."""
    return codes.view(torch.float8_e4m3fn).float()


def from_mxfp4(blocks: Tensor, scales: Tensor) -> QuantizedWeight:
    """MXFP4, as gpt-oss stores it: blocks (out, groups, 16) uint8, two codes in each, the first one
    in the low half; scales (out, groups) uint8, powers of two above 2^-127.
    """
    powers = torch.ldexp(torch.ones(scales.shape), scales.to(torch.int32) - 127)
    return from_e2m1(blocks.flatten(1), powers)


def from_e2m1(packed: Tensor, scales: Tensor) -> QuantizedWeight:
    """packed: (out, in / 2) uint8, two codes in each, the first one in the low half; scales: (out,
    groups) float32.
    """
    codes = torch.stack([packed & 15, packed >> 4], dim=2).flatten(1)
    return QuantizedWeight(codes, scales, None, 4, 0, "e2m1")


def stacked(weights: Sequence[QuantizedWeight]) -> QuantizedWeight:
    """Weights of one kind, one under the other."""
    first = weights[0]
    if any(weight.zero != first.zero for weight in weights):
        if first.offsets is None:
            raise ValueError("symmetric weights of one kind have the same code of 0")
        weights = [weight.with_zero(first.zero) for weight in weights]
    offsets, steps = (
        None if None in parts else torch.cat([part for part in parts if part is not None])
        for parts in ([each.offsets for each in weights], [each.steps for each in weights])
    )
    return replace(
        first,
        codes=torch.cat([weight.codes for weight in weights]),
        scales=torch.cat([weight.scales for weight in weights]),
        offsets=offsets,
        steps=steps,
    )
