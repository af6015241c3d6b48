"""/v1/chat/completions: messages to a job, outputs to `choices`."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

from radixlm.core.keys import Key
from radixlm.core.request import NOTHING, Breakpoint, Piece, RequestOutput, TokenLogprob
from radixlm.observe.outline import Outline
from radixlm.parsers import Answered, AnswerParser
from radixlm.server.http.body import not_too_deep
from radixlm.server.openai.chat_deltas import deltas_of, finish_of, message_of
from radixlm.server.openai.openai_wire import (
    ChatChoice,
    ChatChoices,
    ChatChunkChoice,
    ChatChunkChoices,
    ChatDelta,
    ChatFinish,
    ChatLogprobs,
    PromptIds,
    Tier,
    TokenIds,
)
from radixlm.server.pipeline.answer_memory import Asked, Span
from radixlm.server.pipeline.answer_stream import AnswerStream
from radixlm.server.pipeline.cache_control import Wish, breakpoints_of, wishes_in
from radixlm.server.pipeline.generation import Job
from radixlm.server.pipeline.logprobs import TokenTexts, chat_logprobs
from radixlm.server.pipeline.protocol import ChatBody, ChatMessage, TemplateFields
from radixlm.server.pipeline.rendering import Rendering
from radixlm.server.pipeline.service import Service
from radixlm.server.pipeline.tool_fields import tool_use
from radixlm.text.chat_template import require_template
from radixlm.text.tokenizer import Tokenizer


class ChatPrompt(NamedTuple):
    """text: as the template wrote it, with the memory's mark in it; see `as_plain_text`.

    asked: what its answers are remembered by. breakpoints: what of it is to be kept for later.
    outline: where its messages lie.
    """

    text: str
    key: Key
    asked: Asked | None = None
    breakpoints: tuple[Breakpoint, ...] = ()
    outline: Outline | None = None


@dataclass(frozen=True, slots=True, eq=False)
class ChatTask:
    """new_parser: makes a parser for one of the job's answers."""

    job: Job
    prompt: ChatPrompt
    new_parser: Callable[[], AnswerParser]


def chat_task(service: Service, body: ChatBody, tenant: str) -> ChatTask:
    """Render and tokenize. Takes time in proportion to the messages: call it off the event loop.

    Raises InvalidRequestError that names the field.
    """
    service.check_model(body.model)
    special = bool(body.add_special_tokens)
    return task_of(
        service,
        body,
        lambda: chat_prompt(
            service,
            body.messages,
            body,
            whose=(tenant, *body.namespace),
            add_special_tokens=special,
            wishes=wishes_in(body.messages, body.prompt_cache_options, body.tools or ()),
        ),
        tenant,
        request_id=f"chatcmpl-{uuid.uuid4().hex}",
    )


@not_too_deep()
def task_of(
    service: Service,
    body: ChatBody,
    make_prompt: Callable[[], ChatPrompt],
    tenant: str,
    *,
    request_id: str,
    max_tokens: int | None = None,
) -> ChatTask:
    """The task of a chat, whichever route it comes by. Raises InvalidRequestError.

    make_prompt: called when all else was found right.
    max_tokens: in place of the body's own: as many as there is room for, and these at most.
    """
    params = body.to_params(service.sampling_defaults)
    use = tool_use(body.tools or (), body.tool_choice, body.parallel_tool_calls)
    prompt = make_prompt()
    style, tokenizer = service.answer_style, service.engine.tokenizer
    params = replace(
        params,
        grammar=style.grammar(use, prompt.text, tokenizer, params.grammar),
        shown_special_ids=style.shown(use, tokenizer),
    )
    if max_tokens is not None:
        params = replace(params, max_tokens=service.fitting_limit(prompt.key, max_tokens))
    job = Job(
        request_id=request_id,
        prompts=[prompt.key],
        n=body.n or 1,
        params=params,
        namespace=body.namespace,
        priority=body.priority or 0,
        tenant=tenant,
        breakpoints=prompt.breakpoints,
        asked=prompt.asked,
        outline=prompt.outline,
        cache_report=bool(body.cache_report),
        cached_details=bool(body.return_cached_tokens_details),
    )
    return ChatTask(job, prompt, partial(style.parser, use, prompt.text))


@not_too_deep()
def chat_prompt(
    service: Service,
    messages: Sequence[ChatMessage],
    fields: TemplateFields,
    *,
    add_special_tokens: bool = False,
    whose: Sequence[str] | None = None,
    wishes: Sequence[Wish] = (),
) -> ChatPrompt:
    """The messages' prompt, by the model's template. Raises InvalidRequestError.

    whose: where answers were given to them, their tokens are taken again; without it, nobody's.
    wishes: what is to be kept; the template runs once more where there are any.
    """
    template = require_template(service.engine.chat_template)
    tokenizer, mark = service.engine.tokenizer, service.memory.mark
    chat = Rendering(messages, fields, template, service.answer_style, tokenizer, mark)
    text = chat.render({})
    spans: Sequence[Span] = ()
    asked = None
    # With special tokens around it, the prompt is no beginning of the next one.
    if whose is not None and service.caches and not add_special_tokens:
        given = (chat.tools, fields.template_variables())
        spans, asked = service.memory.recall(text, whose, chat.said, *given)
    key = service.encode(
        text,
        add_special_tokens=add_special_tokens,
        param="messages",
        break_mark=mark,
        known=spans,
    )
    kept = breakpoints_of(tokenizer, key, text, mark, wishes, chat.render)
    return ChatPrompt(text, key, asked, kept, chat.outline(text))


class ChatShape:
    """OpenAI's chat answers, token ids where vLLM has them.

    Source: https://platform.openai.com/docs/api-reference/chat.
    """

    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, task: ChatTask, body: ChatBody) -> None:
        self._tokenizer = tokenizer
        self._new_parser = task.new_parser
        self._params = task.job.params
        self._prompt = task.job.prompts[0]
        self._with_logprobs = task.job.params.logprobs is not None
        self._with_ids = bool(body.return_token_ids)
        # OpenAI says which tier it was only where one was asked for.
        self._tier: Tier = {} if body.service_tier is None else {"service_tier": "default"}
        self._choices: dict[int, _Choice] = {}

    @property
    def reasoning_tokens(self) -> int:
        return sum(known.stream.reasoning_tokens for known in self._choices.values())

    def read(self, choice: int, output: RequestOutput) -> None:
        if choice not in self._choices:
            self._choices[choice] = self._begin()
        known = self._choices[choice]
        known.answered.add(known.stream.events(output))

    def whole(self, outputs: Sequence[RequestOutput]) -> ChatChoices:
        choices = [self._choice(choice, output) for choice, output in enumerate(outputs)]
        return {"choices": choices, **self._tier, **self._prompt_ids()}

    def chunks(self, choice: int, output: RequestOutput) -> list[ChatChunkChoices]:
        """The role comes first and alone, the finish reason last and alone."""
        made: list[ChatChunkChoices] = []
        if choice not in self._choices:
            self._choices[choice] = self._begin()
            first: ChatDelta = {"role": "assistant", "content": "", "refusal": None}
            made.append(self._chunk(choice, first, prompt_ids=self._prompt_ids()))
        known = self._choices[choice]
        pieces = output.as_it_came() if known.texts is None else known.texts.pieces(output)
        for piece, events in known.stream.steps(pieces, output):
            known.add(piece)
            for delta in deltas_of(events):  # the first one has what is told of the tokens
                made.append(self._chunk(choice, delta, told=known.take()))
        if output.finish_reason is not None:
            if known.untold.token_ids and known.texts is not None:
                made.append(self._chunk(choice, {"content": ""}, told=known.take()))
            reason = finish_of(output, called=known.stream.called)
            made.append(self._chunk(choice, {}, finish_reason=reason))
        return made

    def _begin(self) -> _Choice:
        told = self._with_ids or self._with_logprobs
        texts = TokenTexts(self._tokenizer, self._params, self._prompt) if told else None
        return _Choice(AnswerStream(self._new_parser()), texts)

    def _choice(self, choice: int, output: RequestOutput) -> ChatChoice:
        known = self._choices[choice]
        return {
            "index": choice,
            "message": message_of(known.answered),
            "logprobs": self._logprobs(output.logprobs),
            "finish_reason": finish_of(output, called=known.stream.called),
            **self._ids(output.token_ids),
        }

    def _chunk(
        self,
        choice: int,
        delta: ChatDelta,
        *,
        told: Piece = NOTHING,
        finish_reason: ChatFinish | None = None,
        prompt_ids: PromptIds | None = None,
    ) -> ChatChunkChoices:
        entry: ChatChunkChoice = {
            "index": choice,
            "delta": delta,
            "logprobs": self._logprobs(told.logprobs) if told.logprobs else None,
            "finish_reason": finish_reason,
            **self._ids(told.token_ids),
        }
        return {"choices": [entry], **self._tier, **(prompt_ids or {})}

    def _ids(self, token_ids: Sequence[int]) -> TokenIds:
        return {"token_ids": list(token_ids)} if self._with_ids else {}

    def _prompt_ids(self) -> PromptIds:
        return {"prompt_token_ids": self._prompt.tolist()} if self._with_ids else {}

    def _logprobs(self, entries: Sequence[TokenLogprob]) -> ChatLogprobs | None:
        return chat_logprobs(self._tokenizer, entries) if self._with_logprobs else None


@dataclass(slots=True)
class _Choice:
    """One of the answers. texts: where chunks tell of tokens. untold: of these, what they have not
    told yet, since the parser holds the text back.
    """

    stream: AnswerStream
    texts: TokenTexts | None
    answered: Answered = field(default_factory=Answered)
    untold: Piece = NOTHING

    def add(self, piece: Piece) -> None:
        ids, logprobs = self.untold.token_ids, self.untold.logprobs
        self.untold = Piece(ids + piece.token_ids, "", logprobs + piece.logprobs)

    def take(self) -> Piece:
        untold, self.untold = self.untold, NOTHING
        return untold
