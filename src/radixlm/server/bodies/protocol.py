"""The fields of requests that the APIs share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field
from pydantic_core import PydanticCustomError

from radixlm.core.errors import wrong
from radixlm.core.request import Breakpoint, Hint, Namespace
from radixlm.core.sampling import MAX_LOGIT_BIAS, MAX_LOGPROBS, NUMBERS, SamplingParams
from radixlm.server.bodies import answer_fields as answers
from radixlm.server.bodies.cache_control import (
    CacheControl,
    PromptCacheBreakpoint,
    PromptCacheOptions,
    Retention,
)
from radixlm.server.bodies.conversation import Effort
from radixlm.server.http.body import Body, ListOf, named
from radixlm.server.http.fields import (
    MESSAGE_ECHOES,
    MESSAGE_NO_OPS,
    REQUEST_NO_OPS,
    TOKEN_KEY,
    NotYet,
)
from radixlm.text.thinking_switch import ThinkingWish

MAX_N = 128
MAX_CHOICES = 2048
MAX_SALT_LENGTH = 1_024
COMPLETION_MAX_TOKENS = 16
_THINKS = {"enabled": True, "disabled": False}
# Numbers of SamplingParams that APIs name in their own ways, or do not have.
_OF_SOME_APIS = ("max_tokens", "min_tokens", "logprobs", "prompt_logprobs", "logprob_start_len")


def _few(biases: object) -> object:
    """Refuse too many before each is looked at."""
    if isinstance(biases, dict) and len(biases) > MAX_LOGIT_BIAS:
        raise PydanticCustomError(
            "too_many", f"holds {len(biases)} tokens, at most {MAX_LOGIT_BIAS} are allowed"
        )
    return biases


class StreamOptions(Body):
    """continuous_usage_stats: the usage so far in every chunk, as vLLM does it."""

    # What would hide how long an event is.
    no_ops = frozenset({"include_obfuscation"})

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class TokenFields(Body):
    """How tokens are chosen and when an answer ends, as all APIs name it. Null is the default.

    The numbers are SamplingParams' own.
    """

    __annotations__ = {
        name: Annotated[(int if kind.startswith("int") else float) | None, Field(default=None)]
        for name, (kind, _) in NUMBERS.items()
        if name not in _OF_SOME_APIS
    }
    logit_bias: Annotated[dict[str, float], BeforeValidator(_few)] | None = None
    stop: str | ListOf[str] | None = None
    stop_token_ids: ListOf[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None

    def sampling(self, defaults: Mapping[str, float] | None = None, **more: Any) -> SamplingParams:
        """The engine's parameters. Raises InvalidRequestError that names the field.

        defaults: of fields that the request leaves open; without them, SamplingParams' own.
        """
        given = named({name: getattr(self, name) for name in TokenFields.model_fields})
        given |= {
            "stop": (self.stop,) if isinstance(self.stop, str) else tuple(self.stop or ()),
            "stop_token_ids": frozenset(self.stop_token_ids or ()),
            "logit_bias": _biases(self.logit_bias or {}),
        }
        return SamplingParams(**{**(defaults or {}), **given, **more})


class SamplingFields(TokenFields, answers.GrammarFields):
    """The same, with how many answers there are, and what each must look like."""

    n: Annotated[int, Field(ge=1, le=MAX_N)] | None = None

    def sampling(self, defaults: Mapping[str, float] | None = None, **more: Any) -> SamplingParams:
        """The sampling parameters, as in TokenFields."""
        return super().sampling(defaults, grammar=answers.one_of(self.grammars()), **more)


class CacheParams(Body):
    """The cache that a request may share, and how urgent it is. cache_report: tell beside the usage
    why no more of its prompt was cached. cache_hint: what comes after it. cache_ttl: after as many
    seconds what was computed for it is of no use; a hint as well.
    """

    # Bounded, for it is kept as long as a single token that was cached under it.
    cache_salt: Annotated[str, Field(max_length=MAX_SALT_LENGTH)] | None = None
    extra_key: Annotated[str, Field(max_length=MAX_SALT_LENGTH)] | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    cache_report: bool | None = None
    cache_hint: Literal["tool_running", "session_end", "subagent_done"] | None = None
    cache_ttl: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    # The name of an adapter that is loaded.
    lora_path: str | None = None
    # Which of several replicas computes it, modulo their number.
    data_parallel_rank: Annotated[int, Field(ge=0, lt=2**31)] | None = None

    def hint(self, breakpoints: Sequence[Breakpoint] = ()) -> Hint:
        """The hint that the policy learns: what is said, else how long, else that something is
        marked.
        """
        if self.cache_hint is not None:
            return Hint(self.cache_hint)
        if self.cache_ttl is not None:
            return Hint.of_seconds(self.cache_ttl)
        return Hint.MARKED if breakpoints else Hint.NONE

    @property
    def namespace(self) -> Namespace:
        return Namespace(cache_salt=self.cache_salt or "", extra_key=self.extra_key or "")


class ThinkingPart(Body):
    """The switch for thinking as Anthropic has it, and servers of DeepSeek, GLM and Kimi in a
    chat.
    """

    type: Literal["enabled", "disabled", "adaptive", "auto"]
    budget_tokens: Annotated[int, Field(ge=0)] | None = None


class ReasoningPart(Body):
    """The wish for reasoning as OpenRouter has it. max_tokens: of the thoughts."""

    not_yet: ClassVar[NotYet] = {"exclude": (False,)}

    effort: Effort | None = None
    enabled: bool | None = None
    max_tokens: Annotated[int, Field(ge=0)] | None = None


class TemplateFields(Body):
    """The variables that a chat template is given besides the messages. Of whether, and how hard,
    the model is to think, chat_template_kwargs say it by the template's own names.
    """

    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    tools: answers.Tools | None = None
    reasoning_effort: Effort | None = None
    enable_thinking: bool | None = None
    thinking_budget: Annotated[int, Field(ge=0)] | None = None
    thinking: ThinkingPart | None = None
    reasoning: ReasoningPart | None = None

    @property
    def thinking_wish(self) -> ThinkingWish:
        """The wish for thinking, by whichever name."""
        reasoning = self.reasoning or ReasoningPart()
        kind, budget = None, None
        if self.thinking is not None:
            kind, budget = _THINKS.get(self.thinking.type), self.thinking.budget_tokens
        kinds = (self.enable_thinking, kind, reasoning.enabled)
        budgets = (self.thinking_budget, budget, reasoning.max_tokens)
        return ThinkingWish(
            next((on for on in kinds if on is not None), None),
            self.reasoning_effort or reasoning.effort,
            next((tokens for tokens in budgets if tokens is not None), None),
        )

    def template_variables(self) -> dict[str, Any]:
        """Keyword arguments of `ChatTemplate.render`."""
        variables = dict(self.chat_template_kwargs or {})
        for name in ("messages", "tools", "add_generation_prompt", "continue_final_message"):
            if name in variables:
                raise wrong("chat_template_kwargs", f"must not hold {name}")
        return {
            **variables,
            "add_generation_prompt": self.add_generation_prompt,
            "continue_final_message": bool(self.continue_final_message),
        }


class GenerationBody(SamplingFields, answers.ResponseFormatField, CacheParams):
    """Fields that chat and text completions share. Null is the default, as in OpenAI's API.

    Source: https://platform.openai.com/docs/api-reference; what it does not have is named as SGLang
    and vLLM name it.
    """

    no_ops = REQUEST_NO_OPS

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    add_special_tokens: bool | None = None
    return_token_ids: bool | None = None
    return_cached_tokens_details: bool | None = None
    service_tier: str | None = None
    prompt_cache_retention: Retention | None = None

    @property
    def usage_options(self) -> StreamOptions:
        """The options of a stream's usage."""
        return self.stream_options or StreamOptions()

    def sampling(self, defaults: Mapping[str, float] | None = None, **more: Any) -> SamplingParams:
        """The sampling parameters, as in SamplingFields."""
        wanted = self.usage_options
        if (wanted.include_usage or wanted.continuous_usage_stats) and not self.stream:
            raise wrong("stream_options", "needs stream to be true")
        return super().sampling(defaults, **named({"min_tokens": self.min_tokens}), **more)


class TextPart(Body):
    type: str
    text: str | None = None
    prompt_cache_breakpoint: PromptCacheBreakpoint | None = None
    cache_control: CacheControl | None = None


class Prediction(Body):
    """OpenAI's predicted output: what much of the answer may be."""

    type: Literal["content"]
    content: str | ListOf[TextPart]

    @property
    def text(self) -> str:
        """All of it. Raises InvalidRequestError for a part that is no text."""
        if isinstance(self.content, str):
            return self.content
        if any(part.type != "text" for part in self.content):
            raise wrong("prediction", "has a part that is not of type text")
        return "".join(part.text or "" for part in self.content)


class ChatMessage(Body):
    """reasoning: what vLLM calls reasoning_content. cache_control: of the whole content."""

    no_ops = MESSAGE_NO_OPS
    echoes = MESSAGE_ECHOES

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: str | ListOf[TextPart] | None = None
    name: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    tool_calls: ListOf[answers.ToolCallPart] | None = None
    tool_call_id: str | None = None
    cache_control: CacheControl | None = None


class ChatBody(GenerationBody, TemplateFields):
    """POST /v1/chat/completions."""

    messages: Annotated[ListOf[ChatMessage], Field(min_length=1)]
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tool_choice: answers.ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    prediction: Prediction | None = None
    prompt_cache_options: PromptCacheOptions | None = None

    def to_params(self, defaults: Mapping[str, float] | None = None) -> SamplingParams:
        """Raise InvalidRequestError that names the field."""
        if self.top_logprobs is not None:
            if self.top_logprobs and not self.logprobs:
                raise wrong("top_logprobs", "needs logprobs to be true")
            if not 0 <= self.top_logprobs <= MAX_LOGPROBS:
                range_ = f"from 0 to {MAX_LOGPROBS}"
                raise wrong("top_logprobs", f"must be {range_}, got {self.top_logprobs}")
        logprobs = (self.top_logprobs or 0) if self.logprobs else None
        longest = self.max_completion_tokens
        limit = self.max_tokens if longest is None else longest
        return self.sampling(defaults, max_tokens=limit, logprobs=logprobs)

    @property
    def names(self) -> Mapping[str, str]:
        """The request's fields, by what the pipeline and the engine call them."""
        newer = self.max_completion_tokens is not None
        return {"prompt": "messages"} | ({"max_tokens": "max_completion_tokens"} if newer else {})


class CompletionBody(GenerationBody):
    """POST /v1/completions."""

    prompt: str | ListOf[str] | ListOf[int] | ListOf[ListOf[int]]
    logprobs: int | None = None
    echo: bool | None = None
    best_of: Annotated[int, Field(ge=1, le=MAX_N)] | None = None
    prediction: Prediction | None = None
    # 0 is for the prompt alone, which the engine has no such limit for.
    max_tokens: Annotated[int, Field(json_schema_extra={"minimum": 0})] | None = None

    @property
    def prompt_only(self) -> bool:
        return self.max_tokens == 0

    @property
    def tries(self) -> int:
        """How many answers are made for each prompt; the best n of them are given."""
        return max(self.best_of or 1, self.n or 1)

    def to_params(self, defaults: Mapping[str, float] | None = None) -> SamplingParams:
        """Raise InvalidRequestError that names the field."""
        given, best_of = self.n or 1, self.best_of or 1
        if 1 < best_of < given:  # 1 is the default
            raise wrong("best_of", f"{best_of} is less than n {given}")
        if best_of > given and self.stream:
            raise wrong(
                "best_of",
                f"{best_of} with n {given} can not be streamed: which answers are the best is "
                "known at the end",
            )
        limit = COMPLETION_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        if self.prompt_only:
            limit = sampled_for_nothing(self.min_tokens)
        # Without a log-probability of each token nothing says which answer is the best.
        logprobs = 0 if self.logprobs is None and self.tries > given else self.logprobs
        return self.sampling(
            defaults,
            max_tokens=limit,
            logprobs=logprobs,
            prompt_logprobs=self.logprobs if self.echo else None,
        )

    def to_prompts(self) -> list[str | list[int]]:
        """One entry per prompt. Raises InvalidRequestError when there is none."""
        return to_prompts(self.prompt, "prompt")


def sampled_for_nothing(min_tokens: int | None) -> int:
    """The engine's max_tokens when only the prompt is wanted: its last token gives the first of the
    answer at no cost, which is left out then. Raises InvalidRequestError.
    """
    if min_tokens:
        raise wrong("min_tokens", f"{min_tokens} is more than max_tokens 0")
    return 1


def to_prompts(
    prompt: str | list[str] | list[int] | list[list[int]], param: str
) -> list[str | list[int]]:
    """One entry per prompt of field `param`. Raises InvalidRequestError when there is none."""
    match prompt:
        case str():
            return [prompt]
        case [int(), *_]:
            return [[token for token in prompt if isinstance(token, int)]]
        case []:
            raise wrong(param, "is empty")
        case [*_] if len(prompt) > MAX_CHOICES:
            raise wrong(param, f"holds {len(prompt)} prompts, at most {MAX_CHOICES} are allowed")
        case _:
            return [entry for entry in prompt if not isinstance(entry, int)]


def _biases(biases: dict[str, float]) -> dict[int, float]:
    for token in biases:
        if not TOKEN_KEY.fullmatch(token):
            raise wrong("logit_bias", f"needs token ids as keys, got {token!r:.80}")
    return {int(token): bias for token, bias in biases.items()}
