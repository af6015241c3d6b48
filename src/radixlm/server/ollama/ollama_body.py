"""The bodies of Ollama's API, and the sampling that they ask for.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field

from radixlm.core.errors import wrong
from radixlm.core.grammar import ANY_OBJECT, Grammar
from radixlm.core.sampling import SamplingParams
from radixlm.server.bodies.answer_fields import Tools
from radixlm.server.bodies.protocol import CacheParams, TokenFields
from radixlm.server.http.body import Body, ListOf, named
from radixlm.server.http.fields import NotYet
from radixlm.text.thinking_switch import ThinkingWish

_MOST = 2**31 - 1


class OllamaOptions(TokenFields):
    """num_predict: less than 1 sets no limit. num_ctx: the server's context is as it was started;
    what does not fit into that is refused.
    """

    # How a machine computes, and what of a context that overflows is kept: none does here.
    no_ops = frozenset(
        {
            *(
                "num_keep",
                "num_batch",
                "num_gpu",
                "main_gpu",
                "use_mmap",
                "use_mlock",
                "num_thread",
            ),
            *("low_vram", "numa", "f16_kv", "logits_all", "vocab_only", "embedding_only"),
            *("penalize_newline", "repeat_last_n", "mirostat_tau", "mirostat_eta", "num_gqa"),
        }
    )
    not_yet: ClassVar[NotYet] = {"typical_p": (1.0,), "tfs_z": (1.0,), "mirostat": (0,)}

    repeat_penalty: Annotated[float, Field(ge=0.01, le=10)] | None = None
    num_predict: Annotated[int, Field(ge=-2, le=_MOST)] | None = None
    num_ctx: Annotated[int, Field(ge=1, le=_MOST)] | None = None


_OWN = {"repetition_penalty": "repeat_penalty", "max_tokens": "num_predict"}
# The request's fields, by what the pipeline and the engine call them.
NAMES: Final = {
    own: f"options.{name}"
    for own, name in ({name: name for name in TokenFields.model_fields} | _OWN).items()
}


class OllamaBody(CacheParams):
    # Models stay, and no prompt is cut.
    no_ops = frozenset({"keep_alive", "truncate", "shift"})
    not_yet: ClassVar[NotYet] = {
        "images": ([],),
        "template": ("",),
        "suffix": ("",),
        "context": ([],),
        "logprobs": (False,),
        "top_logprobs": (0,),
    }

    model: str | None = None


class AnsweredBody(OllamaBody):
    """think: whether, or how hard. format: `json`, or a JSON schema."""

    options: OllamaOptions | None = None
    stream: bool | None = None
    think: bool | Literal["low", "medium", "high"] | None = None
    format: Literal["json", ""] | dict[str, Any] | None = None

    @property
    def streams(self) -> bool:
        return self.stream is not False

    @property
    def thinking_wish(self) -> ThinkingWish:
        if isinstance(self.think, str):
            return ThinkingWish(effort=self.think)
        return ThinkingWish(on=self.think)

    def to_params(self, defaults: Mapping[str, float]) -> SamplingParams:
        """The engine's parameters. Raises InvalidRequestError that names the field.

        defaults: of options that the request leaves open.
        """
        options = self.options or OllamaOptions()
        if {"repeat_penalty", "repetition_penalty"} <= options.model_dump(exclude_none=True).keys():
            raise wrong("options.repeat_penalty", "is repetition_penalty; leave one of them out")
        grammar = None
        if self.format:
            schema = ANY_OBJECT if self.format == "json" else self.format
            grammar = Grammar.json_schema(schema, param="format")
        limit = options.num_predict if (options.num_predict or 0) > 0 else None
        penalty = named({"repetition_penalty": options.repeat_penalty})
        return options.sampling(defaults, max_tokens=limit, grammar=grammar, **penalty)


class CalledFunctionPart(Body):
    # As a stream gave it.
    echoes = frozenset({"index"})

    name: str
    arguments: dict[str, Any]


class OllamaCallPart(Body):
    """id: as the answer gave it."""

    echoes = frozenset({"type"})

    id: str | None = None
    function: CalledFunctionPart


class OllamaMessagePart(Body):
    """tool_name, tool_call_id: of the call that a message of role `tool` answers; without both it
    is the first that waits.
    """

    not_yet: ClassVar[NotYet] = {"images": ([],)}

    role: Literal["system", "user", "assistant", "tool"]
    content: str | None = None
    thinking: str | None = None
    tool_calls: ListOf[OllamaCallPart] | None = None
    tool_name: str | None = None
    tool_call_id: str | None = None


class OllamaChatBody(AnsweredBody):
    """POST /api/chat. Without messages it asks for nothing but that the model is loaded."""

    messages: ListOf[OllamaMessagePart] | None = None
    tools: Tools | None = None


class OllamaGenerateBody(AnsweredBody):
    """POST /api/generate. raw: the prompt is taken as it is, without the model's template."""

    prompt: str | None = None
    system: str | None = None
    raw: bool | None = None


class TextsBody(OllamaBody):
    """Texts that are not answered: options change nothing."""

    no_ops = OllamaBody.no_ops | {"options"}
    answered = False


class OllamaEmbedBody(TextsBody):
    """POST /api/embed."""

    input: str | ListOf[str]
    dimensions: Annotated[int, Field(ge=1)] | None = None


class OllamaEmbeddingBody(TextsBody):
    """POST /api/embeddings, the older one."""

    prompt: str


class ShowBody(Body):
    """POST /api/show. name: what older clients call the model."""

    no_ops = frozenset({"verbose", "options", "system", "template"})

    model: str | None = None
    name: str | None = None
