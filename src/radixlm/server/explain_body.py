"""The bodies of POST /cache/explain: those of any route that computes a prompt."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final, Literal

from radixlm.core.errors import InvalidRequestError, wrong
from radixlm.server.anthropic.messages_body import MessagesBody
from radixlm.server.bodies.protocol import ChatBody, CompletionBody
from radixlm.server.http.body import Body, checked, parse_json
from radixlm.server.responses.responses_body import ResponseBody
from radixlm.server.sglang.generate_body import GenerateBody


class AcrossFields(Body):
    """across_namespaces: for admins; tell which other namespaces hold more of the prompt."""

    answered: ClassVar[bool] = False
    across_namespaces: bool | None = None


class ExplainChat(ChatBody, AcrossFields):
    """A chat, as /v1/chat/completions takes it: what has messages and names no route."""

    route: Literal["/v1/chat/completions"] | None = None


class ExplainCompletion(CompletionBody, AcrossFields):
    """A body of /v1/completions: it has a prompt."""

    route: Literal["/v1/completions"] | None = None


class ExplainResponse(ResponseBody, AcrossFields):
    """A body of /v1/responses: it has an input, or continues a response."""

    route: Literal["/v1/responses"] | None = None


class ExplainMessages(MessagesBody, AcrossFields):
    """A body of /v1/messages. It must say so: the same messages may be a chat's, and make another
    prompt there.
    """

    route: Literal["/v1/messages"]


class ExplainGenerate(GenerateBody, AcrossFields):
    """A body of /generate: it has a text or input_ids."""

    route: Literal["/generate"] | None = None


ExplainBody = ExplainChat | ExplainCompletion | ExplainResponse | ExplainMessages | ExplainGenerate

_KINDS: Final[Mapping[str, type[ExplainBody]]] = {
    "/v1/chat/completions": ExplainChat,
    "/v1/completions": ExplainCompletion,
    "/v1/responses": ExplainResponse,
    "/v1/messages": ExplainMessages,
    "/generate": ExplainGenerate,
}
# Where no route is named, the fields that hold the prompt say whose a body is.
_PROMPTS: Final[Mapping[str, str]] = {
    "messages": "/v1/chat/completions",
    "prompt": "/v1/completions",
    "input": "/v1/responses",
    "previous_response_id": "/v1/responses",
    "text": "/generate",
    "input_ids": "/generate",
}


def explain_body(body: bytes, strict: bool = False) -> ExplainBody:
    """Read a body as its route does. strict: --strict-fields.

    Raises InvalidRequestError, also where it may be any's.
    """
    value = parse_json(body)
    named = value.get("route")
    if named is not None:
        if not isinstance(named, str) or named not in _KINDS:
            raise wrong("route", f"is one of {', '.join(_KINDS)}, got {named!r:.80}")
        return checked(_KINDS[named], value, strict=strict)
    route = _route_of(value)
    try:
        return checked(_KINDS[route], value, strict=strict)
    except InvalidRequestError as error:
        raise InvalidRequestError(
            f"{error}; it was read as a body of {route}: if it is another's, name that in route",
            param=error.param,
        ) from None


def _route_of(value: Mapping[str, Any]) -> str:
    given = [name for name in _PROMPTS if value.get(name) is not None]
    if isinstance(value.get("text"), dict):
        given.remove("text")  # of a response: what its answer is to look like
    routes = {_PROMPTS[name] for name in given}
    if not routes:
        raise InvalidRequestError(f"the body holds no prompt: give one of {', '.join(_PROMPTS)}")
    if len(routes) > 1:
        raise InvalidRequestError(
            f"{' and '.join(given)} are fields of different routes: give one of them, or name the "
            "route in route",
            param=given[1],
        )
    return routes.pop()
