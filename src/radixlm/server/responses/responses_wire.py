"""The types of the answers and events of /v1/responses.

Source: https://platform.openai.com/docs/api-reference/responses and
https://platform.openai.com/docs/api-reference/responses-streaming.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from radixlm.server.bodies.cache_control import KeepFor
from radixlm.server.bodies.logprobs import ChatToken
from radixlm.server.insight.usage import CacheReported
from radixlm.server.responses.responses_body import Status

Empty = Annotated[list[object], Field(max_length=0)]


class OutputText(TypedDict):
    """logprobs: with message.output_text.logprobs in include, else empty."""

    type: Literal["output_text"]
    text: str
    annotations: Empty
    logprobs: list[ChatToken]


class Output(TypedDict):
    id: str
    status: Status


class OutputMessage(Output):
    type: Literal["message"]
    role: Literal["assistant"]
    content: list[OutputText]


class ReasoningText(TypedDict):
    type: Literal["reasoning_text"]
    text: str


class OutputReasoning(Output):
    """encrypted_content: with reasoning.encrypted_content in include."""

    type: Literal["reasoning"]
    summary: Empty
    content: list[ReasoningText]
    encrypted_content: NotRequired[str]


class OutputCall(Output):
    """arguments: the text of a JSON object, when the status is completed. namespace: of the tool,
    where it is in one.
    """

    type: Literal["function_call"]
    call_id: str
    name: str
    arguments: str
    namespace: NotRequired[str]


OutputItem = OutputMessage | OutputReasoning | OutputCall


class WrittenDetails(TypedDict):
    """The tokens that are kept for so long, since the request asked for it and there was room."""

    ttl_30m_tokens: int
    ttl_12h_tokens: int


class InputDetails(TypedDict):
    cached_tokens: int
    cache_write_tokens: int
    cache_write_tokens_details: WrittenDetails


class OutputDetails(TypedDict):
    reasoning_tokens: int


class ResponseUsage(TypedDict):
    input_tokens: int
    input_tokens_details: InputDetails
    output_tokens: int
    output_tokens_details: OutputDetails
    total_tokens: int


FailureCode = Literal["server_error", "rate_limit_exceeded", "invalid_prompt"]


class ResponseFailure(TypedDict):
    """type, param: as an error's."""

    code: FailureCode
    message: str
    type: str
    param: str | None


class IncompleteDetails(TypedDict):
    reason: Literal["max_output_tokens"]


class CacheOptions(TypedDict):
    """ttl: of the breakpoints that name none."""

    mode: Literal["implicit", "explicit"]
    ttl: KeepFor


Outcome = Literal["queued", "in_progress", "completed", "incomplete", "failed", "cancelled"]


class ConversationName(TypedDict):
    id: str


class ResponseObject(CacheReported):
    """created_at, completed_at: in seconds since 1970. conversation: to which what was said was, or
    is still to be, added. Fields of the request are as it was run."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    conversation: ConversationName | None
    status: Outcome
    background: bool
    error: ResponseFailure | None
    incomplete_details: IncompleteDetails | None
    instructions: str | None
    max_output_tokens: int | None
    max_tool_calls: int | None
    metadata: dict[str, str]
    model: str
    output: list[OutputItem]
    parallel_tool_calls: bool
    previous_response_id: str | None
    prompt_cache_key: str | None
    prompt_cache_options: CacheOptions | None
    prompt_cache_retention: Literal["in_memory", "24h"] | None
    reasoning: dict[str, Any]
    safety_identifier: str | None
    service_tier: Literal["default"]
    store: bool
    temperature: float
    text: dict[str, Any]
    tool_choice: Any
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponseUsage | None
    user: str | None


class InputTokens(TypedDict):
    object: Literal["response.input_tokens"]
    input_tokens: int


class Event(TypedDict):
    sequence_number: int


class ResponseEvent(Event):
    """How the whole response is."""

    type: Literal[
        "response.created",
        "response.in_progress",
        "response.completed",
        "response.incomplete",
        "response.failed",
    ]
    response: ResponseObject


class ItemEvent(Event):
    type: Literal["response.output_item.added", "response.output_item.done"]
    output_index: int
    item: OutputItem


class OfItem(Event):
    item_id: str
    output_index: int


class OfPart(OfItem):
    content_index: int


class PartEvent(OfPart):
    type: Literal["response.content_part.added", "response.content_part.done"]
    part: OutputText | ReasoningText


class TopLogprob(TypedDict):
    token: str
    logprob: float


class EventLogprob(TopLogprob):
    """A log-probability as in an item, without the bytes."""

    top_logprobs: list[TopLogprob]


class TextDeltaEvent(OfPart):
    type: Literal["response.output_text.delta"]
    delta: str
    logprobs: list[EventLogprob]


class TextDoneEvent(OfPart):
    type: Literal["response.output_text.done"]
    text: str
    logprobs: list[EventLogprob]


class ReasoningDeltaEvent(OfPart):
    type: Literal["response.reasoning_text.delta"]
    delta: str


class ReasoningDoneEvent(OfPart):
    type: Literal["response.reasoning_text.done"]
    text: str


class ArgumentsDeltaEvent(OfItem):
    type: Literal["response.function_call_arguments.delta"]
    delta: str


class ArgumentsDoneEvent(OfItem):
    type: Literal["response.function_call_arguments.done"]
    arguments: str


AnyEvent = (
    ResponseEvent
    | ItemEvent
    | PartEvent
    | TextDeltaEvent
    | TextDoneEvent
    | ReasoningDeltaEvent
    | ReasoningDoneEvent
    | ArgumentsDeltaEvent
    | ArgumentsDoneEvent
)


class InputItems(TypedDict):
    """first_id, last_id: null when there are none."""

    object: Literal["list"]
    data: list[dict[str, Any]]
    first_id: str | None
    last_id: str | None
    has_more: bool


class Deleted(TypedDict):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class ConversationObject(TypedDict):
    """created_at: in seconds since 1970."""

    id: str
    object: Literal["conversation"]
    created_at: int
    metadata: dict[str, str]


class ConversationDeleted(TypedDict):
    id: str
    object: Literal["conversation.deleted"]
    deleted: Literal[True]
