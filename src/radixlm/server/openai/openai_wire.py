"""What clients are sent: the types of all JSON answers.

The routes' answers are made as these, so that the type checker holds them to it, and /openapi.json
is written from them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, NotRequired

from pydantic import Field
from typing_extensions import TypedDict

from radixlm.build import ModelInfo
from radixlm.core.config import EngineConfig
from radixlm.core.request import FinishReason
from radixlm.engine.engine_stats import EngineStats
from radixlm.server.config.kv_events_config import KVEventSource
from radixlm.server.pipeline.cache_wire import CacheReport, CacheTold
from radixlm.server.pipeline.logprobs import ChatLogprobs, NativeToken
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


class NativeFinish(TypedDict):
    """length: of the answer in tokens. matched: the stop string or token that ended it."""

    type: FinishReason
    length: NotRequired[int]
    matched: NotRequired[str | int | None]
    message: NotRequired[str]


class NativeLists(TypedDict, total=False):
    """They are there with return_logprob, the top ones with top_logprobs_num."""

    input_token_logprobs: list[NativeToken]
    output_token_logprobs: list[NativeToken]
    input_top_logprobs: list[list[NativeToken] | None]
    output_top_logprobs: list[list[NativeToken] | None]


class NativeMeta(NativeLists):
    """e2e_latency: in seconds, at the end; cache_report too, where it was asked for."""

    id: str
    finish_reason: NativeFinish | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    e2e_latency: NotRequired[float]
    cache_report: NotRequired[CacheReport]


class Generated(TypedDict):
    """index: in a stream of several answers, which one it is."""

    text: str
    output_ids: list[int]
    meta_info: NativeMeta
    index: NotRequired[int]


class ModelCard(TypedDict):
    """created: in seconds since 1970. max_model_len: tokens of prompt and answer."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    shutdown_date: None
    max_model_len: int


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]


class Status(TypedDict):
    status: Literal["ok"]


class Tokenized(TypedDict):
    """token_strs: with return_token_strs; null for an id that the vocabulary leaves out."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str | None] | None


class Detokenized(TypedDict):
    """The same text twice: vLLM calls it prompt, SGLang text. A list where several were given."""

    prompt: str | list[str]
    text: str | list[str]


class TokenizerInfo(TypedDict):
    """tokenizer_config.json, with whatever else it holds."""

    tokenizer_class: str


class Aborted(TypedDict):
    """How many requests were under way."""

    aborted: int


class CacheReset(TypedDict):
    success: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel(ModelInfo):
    served_model_name: str
    is_generation: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts(EngineConfig):
    """kv_events: null where they are not published, or not over TCP. threads: of a step."""

    threads: int
    served_model_name: str
    model_path: str
    max_total_num_tokens: int
    max_req_input_len: int
    version: str
    kv_events: KVEventSource | None
    internal_states: list[EngineStats]


class Load(TypedDict):
    dp_rank: int
    timestamp: float
    num_running_reqs: int
    num_waiting_reqs: int
    num_used_tokens: int
    max_total_num_tokens: int
    token_usage: float
    cache_hit_rate: float
    utilization: float
    max_running_requests: int


class Loads(TypedDict):
    """timestamp: as ISO 8601. loads: one entry, since there is one engine."""

    timestamp: str
    version: str
    loads: list[Load]
