"""One uniform number per (seed, position): no state, so nothing but the two can change it."""

from __future__ import annotations

_MASK = 2**64 - 1
_WEYL = 0x9E3779B97F4A7C15
_FRACTION_BITS = 52


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), the same for the same seed (any integer) and position (>= 0).

    The output function of SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number
    Generators, 2014), first of the seed and then of the position steps after it: neighbouring
    seeds share nothing. 52 bits, so that the largest one stays below 1 when multiplied.
    """
    start = _mix(seed + _WEYL)
    return (_mix(start + (position + 1) * _WEYL) >> (64 - _FRACTION_BITS)) * 2.0**-_FRACTION_BITS


def _mix(value: int) -> int:
    value &= _MASK
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
    return value ^ (value >> 31)
