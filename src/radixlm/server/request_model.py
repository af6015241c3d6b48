"""What all models of requests have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, ConfigDict, Discriminator, Field

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


def by_type(tags: Mapping[str | None, str], what: str) -> Discriminator:
    """Tells a union's members apart by their `type`; None: those without.

    tags: the members' tags, which are their names. what: the beginning of what is said of others.
    """

    def tag(value: Any) -> str | None:
        kind = value.get("type") if isinstance(value, dict) else getattr(value, "type", None)
        return tags.get(kind) if kind is None or isinstance(kind, str) else None

    known = ", ".join(kind for kind in tags if kind is not None)
    return Discriminator(
        tag,
        custom_error_type="unknown_type",
        custom_error_message=f"{what} whose type is one of {known}",
    )
