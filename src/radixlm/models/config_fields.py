"""Typed reading of config.json: a value is checked when it is read, and errors name its field."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from radixlm.core.errors import UnsupportedModelError

# What numbers of a model can be: sizes fit an int32, factors a float32, products of two a float.
MOST = 2**31 - 1
_SMALLEST, _LARGEST = 1e-30, 1e30


def unsupported(field: str, value: object, supported: str) -> UnsupportedModelError:
    """The error for a config field whose value cannot be served."""
    return UnsupportedModelError(
        f"config field {field!r} is {value!r:.200}, which is not supported; supported: {supported}"
    )


@dataclass(frozen=True, slots=True)
class Fields:
    """A JSON object of the config. JSON's null counts as absent, as it does for transformers.

    prefix: where the object stands in the file, for messages, such as `rope_scaling.`.
    The readers raise UnsupportedModelError for a missing field without a default and for a value
    of the wrong kind.
    """

    values: Mapping[str, Any]
    prefix: str = ""

    def get(self, name: str) -> Any:
        """The raw value; None when absent."""
        return self.values.get(name)

    def integer(self, name: str, default: int | None = None) -> int:
        """A positive integer that fits an int32."""
        value = self._given(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
            raise self.wrong(name, f"a positive integer, {MOST} at most")
        return value

    def number(self, name: str, default: float | None = None) -> float:
        """A number above 0, far from what a float32 can hold no more."""
        value = self._given(name, default)
        good = isinstance(value, int | float) and not isinstance(value, bool)
        if not good or not _SMALLEST <= value <= _LARGEST:
            raise self.wrong(name, f"a number from {_SMALLEST} to {_LARGEST}")
        return float(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self._given(name, default)
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def names(self, name: str) -> list[str] | None:
        """A list of texts; None when absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.wrong(name, "a list of names, or null")
        return value

    def section(self, name: str) -> Fields | None:
        """A nested object; None when absent."""
        value = self.get(name)
        if value is None:
            return None
        if not isinstance(value, Mapping):
            raise self.wrong(name, "an object or null")
        return Fields(value, f"{self.prefix}{name}.")

    def wrong(self, name: str, supported: str) -> UnsupportedModelError:
        """The error that names this object's field `name`, its value, and what is supported."""
        return unsupported(self.prefix + name, self.get(name), supported)

    def _given(self, name: str, default: Any) -> Any:
        value = self.get(name)
        if value is None and default is None:
            raise UnsupportedModelError(f"config field {self.prefix + name!r} is missing")
        return default if value is None else value


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """Read from the config by the architecture's own file.

    qkv_bias, output_bias, mlp_bias: which projections add a bias.
    qk_norm: every query and key head is normed before rotary.
    head_dim: size of a head where the config names none; None: hidden_size / heads.
    sliding_window: tokens that a token sees, itself included; None: all before it.
    """

    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    head_dim: int | None = None
    sliding_window: int | None = None
