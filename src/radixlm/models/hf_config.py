"""config.json as Hugging Face writes it: the fields that are read, and what they may be.

JSON's null counts as absent, as it does for transformers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, TypeVar

from pydantic import (
    AliasChoices,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from radixlm.core.errors import UnsupportedModelError
from radixlm.layers.rotary import (
    FactorScaling,
    LinearScaling,
    Llama3Scaling,
    RopeConfig,
    Scaling,
    YarnScaling,
)

# What numbers of a model can be: sizes fit an int32, factors a float32, products of two a float.
MOST = 2**31 - 1
_MOST_LAYERS = 1_000_000
_SMALLEST, _LARGEST = 1e-30, 1e30
_MOST_EOS = 1_000
_ROPE_TYPES = "default, linear, llama3, yarn, dynamic (up to its original length)"


def supported(text: str) -> WrapValidator:
    """Name `text` in the error for whatever the type refuses."""

    def checked(value: Any, check: Any) -> Any:
        try:
            return check(value)
        except (ValidationError, OverflowError):
            raise PydanticCustomError("supported", text) from None

    return WrapValidator(checked)


def unsupported(field: str, value: object, supported: str) -> UnsupportedModelError:
    """The error for a config field whose value cannot be served."""
    return UnsupportedModelError(
        f"config field {field!r} is {value!r:.200}, which is not supported; supported: {supported}"
    )


Size = Annotated[
    int, Field(strict=True, ge=1, le=MOST), supported(f"a positive integer, {MOST} at most")
]
_Layers = Annotated[
    int,
    Field(strict=True, ge=1, le=_MOST_LAYERS),
    supported(f"an integer from 1 to {_MOST_LAYERS}"),
]
Number = Annotated[
    float,
    Field(strict=True, ge=_SMALLEST, le=_LARGEST),
    supported(f"a number from {_SMALLEST} to {_LARGEST}"),
]
Flag = Annotated[bool, Field(strict=True), supported("true or false")]
_TokenId = Annotated[int, Field(strict=True, ge=-MOST, le=MOST)]
_All = Annotated[float, Field(ge=1, le=1), supported("1.0")]
_Dense = Annotated[None, supported("dense models only")]
_Dtype = Annotated[
    Literal["float32", "bfloat16", "float16"],
    BeforeValidator(lambda value: str(value).removeprefix("torch.")),
    supported("float32, bfloat16, float16"),
]
# YaRN's mscale counts as absent when it is 0.
_Weight = Annotated[
    float, Field(strict=True, ge=0, le=_LARGEST), supported(f"a number up to {_LARGEST}")
]


class Fields(BaseModel):
    """An object of the config. The fields that are not declared are kept as they are."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())
    nullable: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            raise PydanticCustomError("supported", "an object or null")
        return {k: v for k, v in values.items() if v is not None or k in cls.nullable}


class EndTokens(Fields):
    """Of config.json and generation_config.json alike."""

    eos_token_id: Annotated[
        _TokenId | Annotated[list[_TokenId | None], Field(max_length=_MOST_EOS)] | None,
        supported(f"token ids, {_MOST_EOS} at most"),
    ] = None

    @property
    def ids(self) -> frozenset[int]:
        given = self.eos_token_id if isinstance(self.eos_token_id, list) else [self.eos_token_id]
        return frozenset(token for token in given if token is not None)


class RopeFields(Fields):
    """`rope_parameters` of transformers 5, `rope_scaling` of 4. Every dimension of a head turns, by
    one position, alike in all layers. Each type has fields of its own, see below.
    """

    partial_rotary_factor: _All = 1.0
    mrope_section: Annotated[None, supported("positions of text only")] = None
    rope_type: Any = None
    type: Any = None
    rope_theta: Number | None = None
    original_max_position_embeddings: Size | None = None


class _Linear(Fields):
    factor: Number


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


class _Factors(Fields):
    """Only GGUF files have them, `radixlm.core.gguf_config`."""

    factors: Annotated[list[Number], Field(min_length=1), supported("positive numbers")]


class HFConfig(EndTokens):
    """What all architectures share; each one's own fields are in its subclass."""

    hidden_act: Annotated[Literal["silu"], supported("silu")] = "silu"
    num_experts: _Dense = None
    num_local_experts: _Dense = None
    n_routed_experts: _Dense = None
    architectures: Annotated[list[str], supported("a list of names, or null")] = []
    vocab_size: Size
    hidden_size: Size
    intermediate_size: Size
    num_hidden_layers: _Layers
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    max_position_embeddings: Size
    original_max_position_embeddings: Size | None = None
    rms_norm_eps: Number = 1e-6
    partial_rotary_factor: _All = 1.0
    rope_theta: Number = 10_000.0
    rope_scaling: RopeFields | None = None
    rope_parameters: RopeFields | None = None
    tie_word_embeddings: Flag = False
    dtype: _Dtype = Field("float32", validation_alias=AliasChoices("dtype", "torch_dtype"))
    bos_token_id: Annotated[_TokenId | None, supported("token ids")] = None

    def traits(self) -> Traits:
        """What sets the architecture apart."""
        raise NotImplementedError


class Traits(NamedTuple):
    """What sets an architecture apart, as its own class reads it from the config.

    qkv_bias, output_bias, mlp_bias: which projections add a bias.
    qk_norm: every query and key head is normed before rotary.
    windows: of each layer how many tokens a token sees, itself included; None: all before it.
        Empty: no layer has one.
    """

    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    windows: tuple[int | None, ...] = ()


_F = TypeVar("_F", bound=Fields)


def read(kind: type[_F], values: Mapping[str, Any] | None, place: str = "") -> _F:
    """Raises UnsupportedModelError that names the field, its value and what is supported.

    place: where the object stands in the file, such as `rope_scaling.`; None is an empty one.
    """
    try:
        return kind.model_validate(values or {})
    except ValidationError as refused:
        error = refused.errors(include_url=False)[0]
    field = place + ".".join(str(part) for part in error["loc"])
    if error["type"] == "missing":
        raise UnsupportedModelError(f"config field {field!r} is missing")
    raise unsupported(field, error["input"], error["msg"])


def read_rope(config: HFConfig) -> tuple[RopeConfig, int]:
    """How positions are encoded, and how many of them the model can tell apart.

    The context is `max_position_embeddings`, stretched for `linear` and `yarn` as vLLM does it
    (yarn: from the original length). `dynamic` changes the rotation of all earlier keys once a
    sequence outgrows the original length, so cached keys would be wrong there: its context ends
    at that length, below which it is the plain rotation.
    Raises UnsupportedModelError that names the field.
    """
    place, rope = _section(config)
    length, theta = config.max_position_embeddings, rope.rope_theta or config.rope_theta
    if theta <= 1:
        raise unsupported("rope_theta", theta, "a number above 1")
    original = (
        config.original_max_position_embeddings or rope.original_max_position_embeddings or length
    )
    scaling: Scaling | None = None
    match rope.rope_type or rope.type or "default":
        case "default":
            pass
        case "dynamic":
            length = min(length, original)
        case "linear":
            scaling = LinearScaling(read(_Linear, rope.model_extra, place).factor)
            if scaling.factor < 1:
                raise unsupported(f"{place}factor", scaling.factor, "1 or more")
            length = int(length * scaling.factor)
        case "llama3":
            scaling = _llama3(read(_Llama3, rope.model_extra, place), place, original)
        case "yarn":
            scaling = _yarn(read(_Yarn, rope.model_extra, place), original, length)
            length = max(length, int(original * scaling.factor))
        case "factors":
            scaling = FactorScaling(tuple(read(_Factors, rope.model_extra, place).factors))
        case other:
            field = "type" if rope.rope_type is None else "rope_type"
            raise unsupported(place + field, other, _ROPE_TYPES)
    return RopeConfig(theta, scaling), length


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
    return YarnScaling(factor, original, attention_factor, *betas, fields.truncate)


def _mscale(factor: float, weight: float) -> float:
    """YaRN's rule for how much attention is sharpened when the context grows by `factor`."""
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1.0 else 1.0
