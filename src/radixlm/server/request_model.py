"""What all models of requests have in common."""

from __future__ import annotations

from typing import Annotated, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from radixlm.server.body_schema import describe_body
from radixlm.server.fields import NOT_YET, NotYet

T = TypeVar("T")

# A list that is given up at its first wrong entry: an error for each of a million holds up all.
ListOf = Annotated[list[T], Field(fail_fast=True)]


class Body(BaseModel):
    """no_ops: names of further fields that are taken, since there is nothing to do for them.

    echoes: those that are taken because they come back from answers, but not with --strict-fields.
    not_yet: names of further fields that are known, with the values of each that ask for nothing.
    """

    # Unknown fields are kept, so that `settle_extras` can say what is wrong with each.
    model_config = ConfigDict(
        strict=True,
        extra="allow",
        frozen=True,
        protected_namespaces=(),
        json_schema_extra=describe_body,
    )
    no_ops: ClassVar[frozenset[str]] = frozenset()
    echoes: ClassVar[frozenset[str]] = frozenset()
    not_yet: ClassVar[NotYet] = NOT_YET
