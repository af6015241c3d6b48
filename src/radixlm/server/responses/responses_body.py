"""The body of /v1/responses: its fields, and the items of a conversation."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from radixlm.core.errors import wrong
from radixlm.core.sampling import MAX_LOGPROBS
from radixlm.server.bodies.answer_fields import MAX_TOOLS, Label, Name
from radixlm.server.bodies.cache_control import (
    PromptCacheBreakpoint,
    PromptCacheOptions,
    Retention,
)
from radixlm.server.bodies.conversation import Effort
from radixlm.server.bodies.protocol import CacheParams, TokenFields
from radixlm.server.http.body import DIGITS, Body, ByType, ListOf, Metadata
from radixlm.server.http.fields import NotYet

Status = Literal["in_progress", "completed", "incomplete"]

MOST_ADDED = 20  # items, to a conversation at a time
MAX_OUTPUT_TOKENS = 2**30
LOGPROBS: Final = "message.output_text.logprobs"
ENCRYPTED: Final = "reasoning.encrypted_content"


class ContentPart(Body):
    """type: input_text, output_text, refusal and, in reasoning, reasoning_text, summary_text."""

    # What came with an answer's text.
    no_ops = frozenset({"annotations", "logprobs"})
    not_yet: ClassVar[NotYet] = dict.fromkeys(
        ("image_url", "file_id", "file_data", "file_url", "filename", "detail", "input_audio"), ()
    )

    type: str
    text: str | None = None
    refusal: str | None = None
    prompt_cache_breakpoint: PromptCacheBreakpoint | None = None


class Item(Body):
    # An answer's items come back with these; their place says the same.
    no_ops = frozenset({"phase"})
    # What an item is not asked for by: who called a tool, and when.
    not_yet: ClassVar[NotYet] = {
        "namespace": (),
        "caller": ({"type": "direct"},),
        "async": (False,),
    }

    id: str | None = None
    status: Status | None = None


class MessageItem(Item):
    type: Literal["message"] = "message"
    role: Literal["user", "assistant", "system", "developer"]
    content: str | ListOf[ContentPart]


class FunctionCallItem(Item):
    """namespace: that of the tool, where it is in one."""

    type: Literal["function_call"]
    call_id: str
    name: str
    namespace: str | None = None
    arguments: str


class FunctionOutputItem(Item):
    type: Literal["function_call_output"]
    call_id: str
    output: str | ListOf[ContentPart]
    name: str | None = None


class ReasoningItem(Item):
    type: Literal["reasoning"]
    summary: ListOf[ContentPart] | None = None
    content: ListOf[ContentPart] | None = None
    encrypted_content: str | None = None


class ReferenceItem(Body):
    """A reference in place of an item that is stored: of one that a response was given, or gave."""

    type: Literal["item_reference"]
    id: str


AnyItem = Annotated[
    MessageItem | FunctionCallItem | FunctionOutputItem | ReasoningItem | ReferenceItem,
    ByType("Items are supported"),
]


class FunctionTool(Body):
    """A function of the client's."""

    not_yet: ClassVar[NotYet] = {
        "allowed_callers": (["direct"],),
        "async": (False,),
        # There is no search that it could come from later, so it is there at once.
        "defer_loading": (True, False),
        "output_schema": (),
    }

    type: Literal["function"]
    name: Name
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class NamespaceTool(Body):
    """Tools of the client's that belong together: Codex sends those of each MCP server so."""

    type: Literal["namespace"]
    name: Name
    description: str | None = None
    tools: Annotated[ListOf[FunctionTool], Field(min_length=1)]


AnyTool = Annotated[FunctionTool | NamespaceTool, ByType(otherwise=FunctionTool)]


class ChosenTool(Body):
    """One entry of allowed_tools, and the tool that must be called."""

    type: Literal["function"]
    name: str
    namespace: str | None = None


class AllowedTools(Body):
    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[ListOf[ChosenTool], Field(min_length=1, max_length=MAX_TOOLS)]


class TextFormat(Body):
    """name to strict: of type json_schema, whose schema is called `schema`."""

    type: Literal["text", "json_object", "json_schema"]
    name: Label | None = None
    description: str | None = None
    json_schema: Annotated[dict[str, Any] | None, Field(alias="schema")] = None
    strict: bool | None = None

    def check(self) -> None:
        """Raise InvalidRequestError unless a schema is there exactly where there should be one."""
        needs = self.type == "json_schema"
        if needs and (self.json_schema is None or not self.name):
            raise wrong("text.format", "of type json_schema needs a name and a schema")
        if not needs and {"name", "description", "json_schema", "strict"} & self.model_fields_set:
            raise wrong("text.format", f"of type {self.type} has no other fields")


class TextConfig(Body):
    """verbosity: the model's own to know; see server/http/fields.py."""

    format: TextFormat | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class Reasoning(Body):
    """summary: whichever is asked for, none is made: the text itself is given."""

    not_yet: ClassVar[NotYet] = {
        "context": ("auto",),
        "generate_summary": ("auto",),
        "mode": ("standard",),
    }

    effort: Effort | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None


class ResponseStreamOptions(Body):
    """include_obfuscation: what would hide how long an event is; there is none."""

    include_obfuscation: bool | None = None


# All but the first two are about tools that run on the server, and images: there are none, so
# nothing of them is left out of an answer.
Include = Literal[
    "message.output_text.logprobs",
    "reasoning.encrypted_content",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "web_search_call.action.sources",
    "web_search_call.results",
]


class ConversationPart(Body):
    """The conversation that a response reads and adds to."""

    id: str


class ResponseBody(TokenFields, CacheParams):
    """POST /v1/responses. Null is the default. Sampling that OpenAI does not have is vLLM's.

    Source: https://platform.openai.com/docs/api-reference/responses/create.
    """

    # Who asks, and which of many servers may have the prompt cached; see server/http/fields.py. The
    # limit is of calls to tools that run on the server, and there are none.
    no_ops = frozenset({"client_metadata", "max_tool_calls"})
    not_yet: ClassVar[NotYet] = {
        **dict.fromkeys(("access_programs", "image", "moderation", "prompt"), ()),
        "context_management": ([],),
    }

    model: str | None = None
    input: str | ListOf[AnyItem] | None = None
    instructions: str | None = None
    previous_response_id: str | None = None
    conversation: str | ConversationPart | None = None
    max_output_tokens: Annotated[int, Field(ge=1, le=MAX_OUTPUT_TOKENS)] | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    text: TextConfig | None = None
    tools: ListOf[AnyTool] | None = None
    tool_choice: Literal["none", "auto", "required"] | ChosenTool | AllowedTools | None = None
    parallel_tool_calls: bool | None = None
    reasoning: Reasoning | None = None
    include: ListOf[Include] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    store: bool | None = None
    background: bool | None = None
    stream: bool | None = None
    stream_options: ResponseStreamOptions | None = None
    metadata: Metadata | None = None
    service_tier: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    prompt_cache_options: PromptCacheOptions | None = None
    prompt_cache_retention: Retention | None = None

    @property
    def stores(self) -> bool:
        return self.store is not False

    @property
    def in_conversation(self) -> str | None:
        """The id of its conversation."""
        named = self.conversation
        return named.id if isinstance(named, ConversationPart) else named

    def includes(self, what: Include) -> bool:
        return what in (self.include or ())

    def check(self) -> None:
        """Raise InvalidRequestError for fields that do not go together."""
        if self.conversation is not None and self.previous_response_id is not None:
            raise wrong("conversation", "is not possible together with previous_response_id")
        if self.input is None and self.previous_response_id is None and self.conversation is None:
            raise wrong("input", "is missing")
        if self.background and not self.stores:
            raise wrong("background", "needs store to be true: its answer is fetched later")
        if self.background and self.stream:
            advice = "ask GET /v1/responses/ID how it is"
            raise wrong("stream", f"with background is not supported yet: {advice}")
        if self.stream_options is not None and not self.stream:
            raise wrong("stream_options", "needs stream to be true")
        if self.top_logprobs and not self.includes(LOGPROBS):
            raise wrong("top_logprobs", f"needs {LOGPROBS} in include")
        if self.text is not None and self.text.format is not None:
            self.text.format.check()


class RetrieveQuery(Body):
    """GET /v1/responses/{response_id}. What is included was chosen when it was made."""

    include: ListOf[Include] | None = None
    stream: Literal["false"] | None = None
    include_obfuscation: Literal["false"] | None = None


class ItemsQuery(Body):
    """GET /v1/responses/{response_id}/input_items, and the items of a conversation."""

    include: ListOf[Include] | None = None
    after: str | None = None
    limit: Annotated[int, Field(ge=1, le=100), DIGITS] = 20
    order: Literal["asc", "desc"] = "desc"


class ConversationBody(Body):
    """POST /v1/conversations. Source: https://platform.openai.com/docs/api-reference/conversations."""

    items: Annotated[ListOf[AnyItem], Field(max_length=MOST_ADDED)] | None = None
    metadata: Metadata | None = None


class ConversationUpdate(Body):
    """POST /v1/conversations/{conversation_id}: the metadata that it has from now on."""

    metadata: Metadata | None


class ItemsBody(Body):
    """POST /v1/conversations/{conversation_id}/items."""

    items: Annotated[ListOf[AnyItem], Field(min_length=1, max_length=MOST_ADDED)]


class IncludeQuery(Body):
    """A query of items: whatever is included is what is stored of one."""

    include: ListOf[Include] | None = None
