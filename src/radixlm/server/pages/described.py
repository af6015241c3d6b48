"""What each route takes and gives, for /openapi.json."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_args

from radixlm.build import ModelInfo
from radixlm.core.config import EngineConfig
from radixlm.core.errors import (
    EngineDeadError,
    InvalidRequestError,
    NodeGoneError,
    NoTrialError,
    QueueFullError,
)
from radixlm.server.anthropic.messages_body import CountBody, MessagesBody
from radixlm.server.anthropic.messages_wire import MessageEvent, MessageOut, TokenCount
from radixlm.server.anthropic.models import ModelInfo as AnthropicModel
from radixlm.server.anthropic.models import ModelPage
from radixlm.server.http.body import Body
from radixlm.server.http.http_errors import (
    AdminKeyNeededError,
    BodyTimeoutError,
    BodyTooLargeError,
    GenerationFailedError,
    ModelNotFoundError,
    NotFoundError,
    NotGeneratingError,
)
from radixlm.server.openai.openai_wire import (
    Aborted,
    CacheReset,
    ChatChunk,
    ChatCompletion,
    Detokenized,
    Error,
    Generated,
    Loads,
    MessagesError,
    ModelCard,
    ModelList,
    ServedModel,
    ServerFacts,
    Status,
    TextChunk,
    TextCompletion,
    Tokenized,
    TokenizerInfo,
)
from radixlm.server.pages.explain_body import ExplainBody
from radixlm.server.pages.tree_routes import SearchParams, TreeParams
from radixlm.server.pages.tree_wire import CacheEvent, NodeWhole, SearchOut, TreeOut
from radixlm.server.pipeline.cache_wire import Advice, Explanation
from radixlm.server.pipeline.protocol import ChatBody, CompletionBody
from radixlm.server.responses.responses_body import ItemsQuery, ResponseBody, RetrieveQuery
from radixlm.server.responses.responses_wire import (
    AnyEvent,
    Deleted,
    InputItems,
    InputTokens,
    ResponseObject,
)
from radixlm.server.sglang.generate_body import AbortBody, GenerateBody
from radixlm.server.sglang.tokenize import DetokenizeBody, TokenizeBody

Errors = tuple[type[Exception], ...]

_READING: Errors = (InvalidRequestError, BodyTimeoutError, BodyTooLargeError)
_NAMING: Errors = (*_READING, ModelNotFoundError)
_STORED: Errors = (InvalidRequestError, NotFoundError)
_LOOKING: Errors = (InvalidRequestError, QueueFullError, EngineDeadError)
_GENERATING: Errors = (QueueFullError, GenerationFailedError, EngineDeadError, NoTrialError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """answer: the types of the JSON answer, which is all of them at once.

    texts: instead, the plain texts by their statuses. events: the type of a stream's events.
    body: of the request, a type or a union of some; example: one that is answered.
    query: what may stand behind the path. error: the type of errors.
    errors: what may be raised, besides what any route may raise.
    admin: with --admin-api-key, only such a key opens it, or part of what it does.
    """

    answer: tuple[Any, ...] = ()
    texts: Mapping[int, str] = field(default_factory=dict)
    events: Any = None
    body: Any = None
    query: type[Body] | None = None
    error: Any = Error
    example: Mapping[str, Any] = field(default_factory=dict)
    errors: Errors = ()
    admin: bool = False

    @property
    def bodies(self) -> Sequence[type[Body]]:
        """The types that `body` is one of."""
        return () if self.body is None else get_args(self.body) or (self.body,)


_MESSAGES_PROMPT = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
_RESET = Described(
    texts={
        200: "The cache is empty.",
        400: "Requests are running: only what they do not use was dropped.",
    },
    errors=(EngineDeadError,),
    admin=True,
)
_MODEL_INFO = Described(answer=(ModelInfo, ServedModel))
_SERVER_INFO = Described(answer=(EngineConfig, ServerFacts))
_UP = Described(answer=(Status,))

# By path, or by method and path where a path's methods differ.
DESCRIBED: Mapping[str, Described] = {
    "/v1/chat/completions": Described(
        body=ChatBody,
        answer=(ChatCompletion,),
        events=ChatChunk,
        errors=(*_NAMING, *_GENERATING),
        example={
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "temperature": 0,
            "max_tokens": 16,
        },
    ),
    "/v1/completions": Described(
        body=CompletionBody,
        answer=(TextCompletion,),
        events=TextChunk,
        errors=(*_NAMING, *_GENERATING),
        example={"prompt": "The capital of France is", "temperature": 0, "max_tokens": 8},
    ),
    "/v1/responses": Described(
        body=ResponseBody,
        answer=(ResponseObject,),
        events=AnyEvent,
        errors=(*_NAMING, *_GENERATING, NotFoundError),
        example={"input": "What is the capital of France?", "max_output_tokens": 16},
    ),
    "/v1/responses/input_tokens": Described(
        body=ResponseBody,
        answer=(InputTokens,),
        errors=(*_NAMING, NotFoundError),
        example={"input": "What is the capital of France?"},
    ),
    "GET /v1/responses/{response_id}": Described(
        answer=(ResponseObject,), query=RetrieveQuery, errors=_STORED
    ),
    "DELETE /v1/responses/{response_id}": Described(answer=(Deleted,), errors=(NotFoundError,)),
    "/v1/responses/{response_id}/cancel": Described(answer=(ResponseObject,), errors=_STORED),
    "/v1/responses/{response_id}/input_items": Described(
        answer=(InputItems,), query=ItemsQuery, errors=_STORED
    ),
    "/v1/messages": Described(
        body=MessagesBody,
        answer=(MessageOut,),
        events=MessageEvent,
        error=MessagesError,
        errors=(*_NAMING, *_GENERATING),
        example={**_MESSAGES_PROMPT, "max_tokens": 16},
    ),
    "/v1/messages/count_tokens": Described(
        body=CountBody,
        answer=(TokenCount,),
        error=MessagesError,
        errors=_NAMING,
        example=_MESSAGES_PROMPT,
    ),
    "/v1/models": Described(answer=(ModelList | ModelPage,), error=Error | MessagesError),
    "/v1/models/{name}": Described(
        answer=(ModelCard | AnthropicModel,),
        errors=(ModelNotFoundError,),
        error=Error | MessagesError,
    ),
    "/generate": Described(
        body=GenerateBody,
        answer=(Generated | list[Generated],),
        events=Generated,
        errors=(*_NAMING, *_GENERATING),
        example={
            "text": "The capital of France is",
            "sampling_params": {"temperature": 0, "max_new_tokens": 8},
        },
    ),
    "/abort_request": Described(
        body=AbortBody,
        answer=(Aborted,),
        errors=(*_READING, EngineDeadError),
        example={"rid": "mine"},
        admin=True,
    ),
    "/tokenize": Described(
        body=TokenizeBody,
        answer=(Tokenized,),
        errors=_NAMING,
        example={"prompt": "The capital of France is"},
    ),
    "/detokenize": Described(
        body=DetokenizeBody,
        answer=(Detokenized,),
        errors=_NAMING,
        example={"tokens": [1, 2, 3]},
    ),
    "/tokenizer_info": Described(answer=(TokenizerInfo,)),
    "/flush_cache": _RESET,
    "/reset_prefix_cache": Described(answer=(CacheReset,), errors=(EngineDeadError,), admin=True),
    "/model_info": _MODEL_INFO,
    "/get_model_info": _MODEL_INFO,
    "/server_info": _SERVER_INFO,
    "/get_server_info": _SERVER_INFO,
    "/cache/explain": Described(
        body=ExplainBody,
        answer=(Explanation,),
        errors=(*_NAMING, NotFoundError, QueueFullError, EngineDeadError, AdminKeyNeededError),
        example={"prompt": "The capital of France is"},
    ),
    "/cache/advice": Described(answer=(Advice,)),
    "/v1/loads": Described(answer=(Loads,)),
    "/cache/tree": Described(
        answer=(TreeOut,), query=TreeParams, errors=(*_LOOKING, NodeGoneError), admin=True
    ),
    "/cache/events": Described(
        answer=(TreeOut,),
        events=CacheEvent,
        query=TreeParams,
        errors=(*_LOOKING, NodeGoneError),
        admin=True,
    ),
    "/cache/node/{node_id}": Described(
        answer=(NodeWhole,), errors=(*_LOOKING, NotFoundError), admin=True
    ),
    "/cache/search": Described(
        answer=(SearchOut,), query=SearchParams, errors=_LOOKING, admin=True
    ),
    "/metrics": Described(texts={200: "Prometheus' text format."}),
    "/health": Described(answer=(Status,), errors=(EngineDeadError,)),
    "/health_generate": Described(answer=(Status,), errors=(EngineDeadError, NotGeneratingError)),
    "/ping": _UP,
}
