"""The config's rotary fields, in the spellings of transformers 4 and 5, into a RopeConfig."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

from radixlm.layers.rotary import LinearScaling, Llama3Scaling, RopeConfig, YarnScaling
from radixlm.models.config_fields import Fields, unsupported

_DEFAULT_THETA = 10_000.0
_TYPES = "default, linear, llama3, yarn, dynamic (up to its original length)"


class Rope(NamedTuple):
    """How positions are encoded, and how many of them the model can tell apart."""

    config: RopeConfig
    context_length: int


def read_rope(config: Fields) -> Rope:
    """Read `rope_parameters` (v5), or `rope_scaling` and `rope_theta` (v4).

    The context is `max_position_embeddings`, stretched for `linear` and `yarn` as vLLM does it
    (yarn: from the original length). `dynamic` changes the rotation of all earlier keys once a
    sequence outgrows the original length, so cached keys would be wrong there: its context ends
    at that length, below which it is the plain rotation.
    Raises UnsupportedModelError that names the field.
    """
    length = config.integer("max_position_embeddings")
    rope = _section(config)
    _refuse_partial(config, rope)
    theta = rope.number("rope_theta", config.number("rope_theta", _DEFAULT_THETA))
    if theta <= 1:
        raise unsupported("rope_theta", theta, "a number above 1")
    original = config.integer(
        "original_max_position_embeddings",
        rope.integer("original_max_position_embeddings", length),
    )
    field = "type" if rope.get("rope_type") is None else "rope_type"
    match rope.get(field) or "default":
        case "default":
            return Rope(RopeConfig(theta), length)
        case "dynamic":
            return Rope(RopeConfig(theta), min(length, original))
        case "linear":
            factor = rope.number("factor")
            if factor < 1:
                raise rope.wrong("factor", "1 or more")
            return Rope(RopeConfig(theta, LinearScaling(factor)), int(length * factor))
        case "llama3":
            return Rope(RopeConfig(theta, _llama3(rope, original)), length)
        case "yarn":
            scaling = _yarn(rope, original, length)
            return Rope(RopeConfig(theta, scaling), max(length, int(original * scaling.factor)))
        case _:
            raise rope.wrong(field, _TYPES)


def _section(config: Fields) -> Fields:
    for name in ("rope_scaling", "rope_parameters"):
        section = config.section(name)
        if section is not None and section.values:
            return section
    return Fields({})


def _refuse_partial(config: Fields, rope: Fields) -> None:
    """Every dimension of a head turns, by one position, alike in all layers; or it is refused."""
    for fields in (config, rope):
        if fields.get("partial_rotary_factor") not in (None, 1):
            raise fields.wrong("partial_rotary_factor", "1.0")
    if rope.get("mrope_section") is not None:
        raise rope.wrong("mrope_section", "positions of text only")
    for name, value in rope.values.items():
        if isinstance(value, Mapping):
            raise rope.wrong(name, "one set of rotary parameters for all layers")


def _llama3(rope: Fields, original: int) -> Llama3Scaling:
    low, high = rope.number("low_freq_factor"), rope.number("high_freq_factor")
    if high <= low:
        raise rope.wrong("high_freq_factor", f"more than low_freq_factor, {low}")
    return Llama3Scaling(
        factor=rope.number("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_length=original,
    )


def _yarn(rope: Fields, original: int, length: int) -> YarnScaling:
    factor = rope.number("factor", length / original)
    if rope.get("attention_factor") is not None:
        attention_factor = rope.number("attention_factor")
    elif rope.get("mscale") and rope.get("mscale_all_dim"):
        attention_factor = _mscale(factor, rope.number("mscale")) / _mscale(
            factor, rope.number("mscale_all_dim")
        )
    else:
        attention_factor = _mscale(factor, 1.0)
    return YarnScaling(
        factor=factor,
        original_length=original,
        attention_factor=attention_factor,
        beta_fast=rope.number("beta_fast", 32.0),
        beta_slow=rope.number("beta_slow", 1.0),
        truncate=rope.flag("truncate", True),
    )


def _mscale(factor: float, weight: float) -> float:
    """YaRN's rule for how much attention is sharpened when the context grows by `factor`."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0
