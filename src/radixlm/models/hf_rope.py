"""How positions are encoded: `rope_parameters` or `rope_scaling` of config.json, by `rope_type`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from radixlm.layers.rotary import (
    FactorScaling,
    LinearScaling,
    Llama3Scaling,
    LongScaling,
    ProportionalScaling,
    QueryFactors,
    RopeConfig,
    Scaling,
    YarnScaling,
)
from radixlm.models.config_fields import LARGEST, Fields, Flag, Number, read, supported, unsupported
from radixlm.models.hf_config import HFConfig, RopeFields

_ROPE_TYPES = "default, linear, llama3, yarn, proportional, dynamic (up to its original length)"
# YaRN's mscale counts as absent when it is 0.
_Weight = Annotated[
    float, Field(strict=True, ge=0, le=LARGEST), supported(f"a number up to {LARGEST}")
]
_Numbers = Annotated[list[Number], Field(min_length=1), supported("positive numbers")]


class _Linear(Fields):
    factor: Number


class _Proportional(Fields):
    factor: Number = 1.0


class _Llama3(Fields):
    low_freq_factor: Number
    high_freq_factor: Number
    factor: Number


class _Yarn(Fields):
    factor: Number | None = None
    attention_factor: Number | None = None
    mscale: _Weight = 0.0
    mscale_all_dim: _Weight = 0.0
    beta_fast: Number = 32.0
    beta_slow: Number = 1.0
    truncate: Flag = True


class _Queries(Fields):
    llama_4_scaling_beta: _Weight = 0.0


class _Factors(Fields):
    """Only GGUF files have them, `radixlm.formats.gguf_config`."""

    factors: _Numbers


class _Long(Fields):
    short_factor: _Numbers
    long_factor: _Numbers
    factor: Number | None = None
    attention_factor: Number | None = None


def read_rope(config: HFConfig) -> tuple[RopeConfig, int]:
    """How positions are encoded, and how many of them the model can tell apart.

    The context is `max_position_embeddings`, stretched for `linear` and `yarn` as vLLM does it
    (yarn: from the original length). `dynamic` changes the rotation of all earlier keys once a
    sequence outgrows the original length, so cached keys would be wrong there: its context ends
    at that length, below which it is the plain rotation.
    Raises UnsupportedModelError that names the field.
    """
    place, rope = _section(config)
    theta = rope.rope_theta or config.rope_theta
    if theta <= 1:
        raise unsupported("rope_theta", theta, "a number above 1")
    scaling, length = _scaling(config, rope, place)
    return RopeConfig(theta, scaling, _share(config, rope, place), _queries(rope, place)), length


def _queries(rope: RopeFields, place: str) -> QueryFactors | None:
    """Read what later queries are multiplied by: the length is that of before the stretching."""
    beta = read(_Queries, rope.model_extra, place).llama_4_scaling_beta
    length = rope.original_max_position_embeddings
    return QueryFactors(beta, length) if beta and length else None


def _scaling(config: HFConfig, rope: RopeFields, place: str) -> tuple[Scaling | None, int]:
    """The scaling, and the context."""
    length = config.max_position_embeddings
    original = (
        config.original_max_position_embeddings or rope.original_max_position_embeddings or length
    )
    scaling: Scaling | None = None
    match rope.rope_type or rope.type or "default":
        case "default" | "mrope":  # of a text all three positions are one
            pass
        case str(kind) if kind in config.long_ropes:
            fields = read(_Long, rope.model_extra, place)
            scaling = _long(fields, original, length)
        case "dynamic":
            length = min(length, original)
        case "linear":
            scaling = LinearScaling(read(_Linear, rope.model_extra, place).factor)
            if scaling.factor < 1:
                raise unsupported(f"{place}factor", scaling.factor, "1 or more")
            length = length if config.is_stretched else int(length * scaling.factor)
        case "proportional":
            factor = read(_Proportional, rope.model_extra, place).factor
            share = rope.partial_rotary_factor or config.partial_rotary_factor or 1.0
            scaling = ProportionalScaling(share, factor)
        case "llama3":
            scaling = _llama3(read(_Llama3, rope.model_extra, place), place, original)
        case "yarn":
            scaling = _yarn(read(_Yarn, rope.model_extra, place), original, length)
            length = max(length, int(original * scaling.factor))
        case "factors":
            scaling = FactorScaling(tuple(read(_Factors, rope.model_extra, place).factors))
        case other:
            field = "type" if rope.rope_type is None else "rope_type"
            more = "".join(f", {name}" for name in sorted(config.long_ropes))
            raise unsupported(place + field, other, _ROPE_TYPES + more)
    return scaling, length


def _share(config: HFConfig, rope: RopeFields, place: str) -> float:
    """The share of a head's dimensions that turn."""
    if (rope.rope_type or rope.type) == "proportional":
        return 1.0
    share, name = rope.partial_rotary_factor, f"{place}partial_rotary_factor"
    if share is None:
        share, name = config.partial_rotary_factor, "partial_rotary_factor"
    if not config.turns_part and share not in (None, 1):
        raise unsupported(name, share, "1.0")
    return share or 1.0


def _section(config: HFConfig) -> tuple[str, RopeFields]:
    for name in ("rope_scaling", "rope_parameters"):
        rope: RopeFields | None = getattr(config, name)
        for key, value in (rope.model_extra or {} if rope else {}).items():
            if isinstance(value, Mapping):
                one = "one set of rotary parameters for all layers"
                raise unsupported(f"{name}.{key}", value, one)
        if rope is not None and (rope.model_fields_set or rope.model_extra):
            return f"{name}.", rope
    return "rope_scaling.", RopeFields()


def _llama3(fields: _Llama3, place: str, original: int) -> Llama3Scaling:
    low, high = fields.low_freq_factor, fields.high_freq_factor
    if high <= low:
        raise unsupported(f"{place}high_freq_factor", high, f"more than low_freq_factor, {low}")
    return Llama3Scaling(fields.factor, low, high, original)


def _yarn(fields: _Yarn, original: int, length: int) -> YarnScaling:
    factor = fields.factor or length / original
    attention_factor = fields.attention_factor
    if attention_factor is None:
        attention_factor = _mscale(factor, 1.0)
        if fields.mscale and fields.mscale_all_dim:
            weights = fields.mscale, fields.mscale_all_dim
            attention_factor = _mscale(factor, weights[0]) / _mscale(factor, weights[1])
    betas = fields.beta_fast, fields.beta_slow
    score_factor = _mscale(factor, fields.mscale_all_dim)
    return YarnScaling(factor, original, attention_factor, *betas, fields.truncate, score_factor)


def _mscale(factor: float, weight: float) -> float:
    """YaRN's rule for how much attention is sharpened when the context grows by `factor`."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0


def _long(fields: _Long, original: int, length: int) -> LongScaling:
    attention_factor, factor = fields.attention_factor, fields.factor or length / original
    if attention_factor is None:
        attention_factor = (
            math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
        )
    factors = tuple(fields.short_factor), tuple(fields.long_factor)
    return LongScaling(*factors, original, attention_factor)
