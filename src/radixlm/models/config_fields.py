"""An object of a model's JSON: what its fields may be, and errors that name field and value.

JSON's null counts as absent, as it does for transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from radixlm.core.errors import UnsupportedModelError

# What numbers of a model can be: sizes fit an int32, factors a float32, products of two a float.
MOST = 2**31 - 1
SMALLEST, LARGEST = 1e-30, 1e30


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
Number = Annotated[
    float,
    Field(strict=True, ge=SMALLEST, le=LARGEST),
    supported(f"a number from {SMALLEST} to {LARGEST}"),
]
# A part of something: the dimensions of a head that turn.
Share = Annotated[float, Field(strict=True, gt=0, le=1), supported("a number above 0, up to 1")]
Flag = Annotated[bool, Field(strict=True), supported("true or false")]
Count = Annotated[int, Field(strict=True, ge=0, le=MOST), supported(f"an integer from 0 to {MOST}")]


class Fields(BaseModel):
    """An object of the config. The fields that are not declared are kept as they are."""

    model_config = ConfigDict(frozen=True, extra="allow", protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            raise PydanticCustomError("supported", "an object or null")
        return {k: v for k, v in values.items() if v is not None}


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
