"""The body of a request to /v1/messages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from radixlm.core.errors import InvalidRequestError, wrong
from radixlm.server.anthropic import messages_blocks as blocks
from radixlm.server.bodies.answer_fields import MAX_TOOLS, Name
from radixlm.server.bodies.cache_control import MAX_BREAKPOINTS, CacheControl
from radixlm.server.bodies.conversation import Json
from radixlm.server.bodies.protocol import CacheParams
from radixlm.server.http.body import Body, ByType, ListOf
from radixlm.server.http.fields import NotYet

MAX_TOKENS = 2**30
MIN_THINKING = 1024


class _Tool(Body):
    """input_examples: shown to the model at the description's end."""

    # How its input is streamed makes no difference: it comes as it is made. Nor does it when the
    # tool is loaded: there is no search that it could come from later, so it is there at once.
    no_ops = frozenset({"eager_input_streaming", "defer_loading"})
    allowed_callers: ListOf[str] | None = None
    input_examples: ListOf[Json] | None = None
    strict: bool | None = None
    cache_control: CacheControl | None = None


class CustomTool(_Tool):
    """A tool that the client describes and runs."""

    type: Literal["custom"] | None = None
    name: Name
    description: str | None = None
    input_schema: Json


class BashTool(_Tool):
    """A shell that the client runs."""

    type: Literal["bash_20241022", "bash_20250124"]
    name: Literal["bash"]


class OldEditorTool(_Tool):
    """An editor that the client runs, and that can undo."""

    type: Literal["text_editor_20241022", "text_editor_20250124"]
    name: Literal["str_replace_editor"]


class EditorTool(_Tool):
    """max_characters: of a file that is viewed, at most that many are shown."""

    type: Literal["text_editor_20250429", "text_editor_20250728"]
    name: Literal["str_replace_based_edit_tool"]
    max_characters: Annotated[int, Field(ge=1)] | None = None


ClientTool = Annotated[
    CustomTool | BashTool | OldEditorTool | EditorTool, ByType("Tools are supported")
]


class MessageToolChoice(Body):
    """name: of type tool."""

    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool | None = None


class Thinking(Body):
    """budget_tokens: a hint. max_tokens is what bounds thoughts and answer together.

    display: whether thoughts are shown, which "omitted" alone denies; they are as they are, never a
    summary.
    """

    type: Literal["enabled", "disabled", "adaptive"]
    budget_tokens: Annotated[int, Field(ge=MIN_THINKING, le=MAX_TOKENS)] | None = None
    display: str | None = None


class OutputFormat(Body):
    type: Literal["json_schema"]
    json_schema: Annotated[Json, Field(alias="schema")]


class OutputConfig(Body):
    effort: Literal["low", "medium", "high", "xhigh", "max"] | None = None
    format: OutputFormat | None = None


class MessageMetadata(Body):
    """The caller's own name for who asks; nothing is done with it."""

    user_id: str | None = None


class PromptBody(Body):
    """The fields that make the prompt."""

    # Who asks, what is to be said of the cache (`cache_report` does), and how fast: as fast as it
    # goes.
    no_ops = frozenset({"diagnostics", "speed", "user_profile_id", "workspace_id"})
    not_yet: ClassVar[NotYet] = {
        **dict.fromkeys(("container", "inference_geo", "thread"), ()),
        "mcp_servers": ([],),
    }

    model: str | None = None
    messages: Annotated[ListOf[blocks.SentMessage], Field(min_length=1)]
    system: str | ListOf[blocks.TextBlock] | None = None
    tools: Annotated[ListOf[ClientTool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: MessageToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    cache_control: CacheControl | None = None
    context_management: blocks.ContextManagement | None = None

    @property
    def edits(self) -> Sequence[blocks.Edit]:
        """The edits of the context."""
        return (self.context_management.edits or ()) if self.context_management else ()

    def check(self) -> None:
        """Raise InvalidRequestError for fields that do not go together."""
        choice, thinking = self.tool_choice, self.thinking
        for place, tool in enumerate(self.tools or ()):
            if tool.allowed_callers is not None and "direct" not in tool.allowed_callers:
                raise wrong(
                    f"tools[{place}].allowed_callers", "must hold 'direct': there are no others"
                )
        if choice is not None and (choice.type == "tool") != (choice.name is not None):
            raise wrong("tool_choice.name", "goes with tool_choice.type 'tool'")
        given = thinking is not None and thinking.budget_tokens is not None
        if thinking is not None and (thinking.type == "enabled") != given:
            raise wrong("thinking.budget_tokens", "goes with thinking.type 'enabled'")
        marked = [each for each in self._marked() if each.cache_control is not None]
        if len(marked) > MAX_BREAKPOINTS:
            places = f"stands in {len(marked)} places, at most {MAX_BREAKPOINTS} may have one"
            raise wrong("cache_control", places)
        if any(isinstance(each, blocks.TextBlock) and not each.text for each in marked):
            raise wrong("cache_control", "can not be set for empty text blocks")
        times = [each.cache_control.seconds for each in marked if each.cache_control]
        if times != sorted(times, reverse=True):
            raise InvalidRequestError(
                "a cache_control with ttl '1h' must not come after one with ttl '5m', in the order "
                "tools, system, messages",
                param="cache_control",
            )

    def _marked(self) -> Iterator[ClientTool | blocks.ContentBlock | PromptBody]:
        """All that may have a mark, in order."""
        yield from self.tools or ()
        yield from self.system if isinstance(self.system, list) else ()
        for message in self.messages:
            for block in message.content if isinstance(message.content, list) else ():
                if isinstance(block, blocks.ToolResultBlock) and isinstance(block.content, list):
                    for part in block.content:
                        yield from (*part.parts, part)
                if isinstance(block, blocks.ContentBlock):
                    yield from (*block.parts, block)
        yield self


class CountBody(PromptBody):
    """POST /v1/messages/count_tokens."""


class MessagesBody(PromptBody, CacheParams):
    """POST /v1/messages. Null is the default.

    Source: https://docs.claude.com/en/api/messages.
    """

    # 0 computes the prompt and no more. More than there is room for is as much as fits.
    max_tokens: Annotated[int, Field(ge=0, le=MAX_TOKENS)]
    stop_sequences: ListOf[str] | None = None
    stream: bool | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    metadata: MessageMetadata | None = None
    service_tier: str | None = None
    # As it was called before output_config.
    output_format: OutputFormat | None = None

    @property
    def prompt_only(self) -> bool:
        return self.max_tokens == 0

    @property
    def shows_thinking(self) -> bool:
        return self.thinking is None or self.thinking.display != "omitted"
