"""What OpenAI's completions are, as JSON. /openapi.json is written from these types."""

from __future__ import annotations

from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from radixlm.core.request import FinishReason
from radixlm.server.pipeline.cache_wire import CacheTold
from radixlm.server.pipeline.logprobs import ChatLogprobs
from radixlm.server.pipeline.usage import Usage


class Head(TypedDict):
    """created: in seconds since 1970. system_fingerprint: of what computes the answers."""

    id: str
    object: str
    created: int
    model: str
    system_fingerprint: str


class Tier(TypedDict, total=False):
    """It is there where the request names one."""

    service_tier: Literal["default"]


class TokenIds(TypedDict, total=False):
    """They are there with return_token_ids."""

    token_ids: list[int]


class PromptIds(TypedDict, total=False):
    """They are there with return_token_ids; in a stream, with a choice's first tokens."""

    prompt_token_ids: list[int]


class CalledFunction(TypedDict):
    """arguments: a JSON object, as text."""

    name: str
    arguments: str


class MessageToolCall(TypedDict):
    id: str
    type: Literal["function"]
    function: CalledFunction


class ChatAnswer(TypedDict):
    """content: null when there are only calls. reasoning_content: what was thought before."""

    role: Literal["assistant"]
    content: str | None
    reasoning_content: NotRequired[str]
    refusal: None
    tool_calls: NotRequired[list[MessageToolCall]]
    annotations: Annotated[list[object], Field(max_length=0)]


# "tool_calls" goes before "stop".
ChatFinish = FinishReason | Literal["tool_calls"]


class ChatChoice(TokenIds):
    index: int
    message: ChatAnswer
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish | None


class ChatChoices(Tier, PromptIds):
    choices: list[ChatChoice]


class ChatCompletion(Head, ChatChoices, CacheTold):
    usage: Usage


class FunctionDelta(TypedDict, total=False):
    """The name comes first, with no arguments."""

    name: str
    arguments: str


class ToolCallDelta(TypedDict):
    """index: of the answer's calls. id and type come with the name."""

    index: int
    id: NotRequired[str]
    type: NotRequired[Literal["function"]]
    function: FunctionDelta


class ChatDelta(TypedDict, total=False):
    """What is new: the role first and alone, then thoughts, text and calls."""

    role: Literal["assistant"]
    content: str
    reasoning_content: str
    tool_calls: list[ToolCallDelta]
    refusal: None


class ChatChunkChoice(TokenIds):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None
    finish_reason: ChatFinish | None


class ChatChunkChoices(Tier, PromptIds):
    choices: list[ChatChunkChoice]


class ChatChunk(Head, ChatChunkChoices, CacheTold):
    """usage: with stream_options.include_usage; null but in the last, which has no choices, unless
    stream_options.continuous_usage_stats asks for what it is so far.
    """

    usage: NotRequired[Usage | None]


class TextLogprobs(TypedDict):
    """One entry per token in each list; null for a prompt's first token."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class TextChoice(TokenIds, PromptIds):
    index: int
    text: str
    logprobs: TextLogprobs | None
    finish_reason: FinishReason | None


class TextChoices(TypedDict):
    choices: list[TextChoice]


class TextCompletion(Head, TextChoices, CacheTold):
    usage: Usage


class TextChunk(Head, TextChoices, CacheTold):
    """usage: as ChatChunk's."""

    usage: NotRequired[Usage | None]
