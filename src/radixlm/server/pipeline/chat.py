"""The prompt of a chat's messages, and what is to be generated for it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from radixlm.core.keys import Key
from radixlm.core.request import Breakpoint
from radixlm.core.sampling import SamplingParams
from radixlm.observe.causes import Outline
from radixlm.parsers import AnswerParser
from radixlm.parsers.tools import ToolUse
from radixlm.server.bodies.billing_header import LEFT_OUT, without_billing_header
from radixlm.server.bodies.cache_control import breakpoints_of
from radixlm.server.bodies.chat_conversation import chat_of, use_of
from radixlm.server.bodies.conversation import Conversation
from radixlm.server.bodies.protocol import CacheParams, ChatBody
from radixlm.server.http.body import in_callers_words, not_too_deep
from radixlm.server.pipeline.answer_memory import Asked, Span
from radixlm.server.pipeline.generation import Generation
from radixlm.server.pipeline.service import Service
from radixlm.text.chat_template import require_template
from radixlm.text.thinking_switch import thinks


class ChatPrompt(NamedTuple):
    """text: as the template wrote it, with the memory's mark in it; see `ChatTemplate.plain_text`.

    asked: what its answers are remembered by. breakpoints: what of it is to be kept for later.
    outline: where its messages lie. changes: what of the messages it leaves out, and why.
    thinks: whether its answer may hold reasoning.
    """

    text: str
    key: Key
    asked: Asked | None = None
    breakpoints: tuple[Breakpoint, ...] = ()
    outline: Outline | None = None
    changes: tuple[str, ...] = ()
    thinks: bool = True


@dataclass(frozen=True, slots=True, eq=False)
class ChatTask:
    """new_parser: makes a parser for one of its answers."""

    generation: Generation
    prompt: ChatPrompt
    new_parser: Callable[[], AnswerParser]


@not_too_deep()
def chat_task(service: Service, body: ChatBody, tenant: str) -> ChatTask:
    """Render and tokenize. Takes time in proportion to the messages: call it off the event loop.

    Raises InvalidRequestError that names the field.
    """
    service.check_model(body.model)
    names = body.names
    with in_callers_words(names):
        params, use = body.to_params(service.sampling_defaults), use_of(body)
        prompt = chat_prompt(service, chat_of(body), whose=(tenant, *service.namespace_of(body)))
        return task_of(
            *(service, prompt, use, params, body, tenant),
            request_id=f"chatcmpl-{uuid.uuid4().hex}",
            names=names,
            n=body.n or 1,
            prediction=service.predicted(body.prediction),
        )


def task_of(
    service: Service,
    prompt: ChatPrompt,
    use: ToolUse,
    params: SamplingParams,
    body: CacheParams,
    tenant: str,
    *,
    request_id: str,
    names: Mapping[str, str],
    n: int = 1,
    prompt_only: bool = False,
    prediction: Key | None = None,
) -> ChatTask:
    """The task of a chat, whichever API it came by. Raises InvalidRequestError.

    names: as Generation.names. prompt_only: nothing is to be generated.
    """
    style, tokenizer = service.answer_style, service.engine.tokenizer
    thoughts = style.marks(prompt.text)
    if thoughts is not None and thoughts.ends[-1] in params.stop:
        thoughts = None  # it is the thoughts that are wanted
    params = replace(
        params,
        thoughts=thoughts,
        grammar=style.grammar(*(use, prompt.text, tokenizer, params.grammar), thinks=prompt.thinks),
        shown_special_ids=style.shown(use, tokenizer),
    )
    generation = Generation.of(
        *(service, request_id, [prompt.key], [params], body, tenant),
        n=n,
        breakpoints=prompt.breakpoints,
        prompt_only=[prompt_only],
        asked=prompt.asked,
        outline=prompt.outline,
        changes=prompt.changes,
        names=names,
        prediction=prediction,
    )
    return ChatTask(generation, prompt, partial(style.parser, use, prompt.text))


def chat_prompt(
    service: Service, chat: Conversation, *, whose: Sequence[str] | None = None
) -> ChatPrompt:
    """A conversation's prompt, by the model's template. Raises InvalidRequestError.

    whose: for whom it is computed, so that the tokens of answers that were given to them are taken
    again, and what is to be kept is found (the template runs once more then); else for nobody.
    """
    template = require_template(service.engine.chat_template)
    changes: tuple[str, ...] = ()
    left = chat if service.config.keep_billing_header else without_billing_header(chat)
    if left is not chat:
        chat, changes = left, (LEFT_OUT,)
        service.notices.once(LEFT_OUT)
    tokenizer, mark = service.engine.tokenizer, service.memory.mark
    silent = thinks(chat.thinking, chat.variables) is False
    chat = chat.asking(service.thinking_switch)
    render = partial(chat.render, template, service.answer_style, tokenizer, mark)
    text = render()
    spans: Sequence[Span] = ()
    asked = None
    # With special tokens around it, the prompt is no beginning of the next one.
    if whose is not None and service.caches and not chat.add_special_tokens:
        spans, asked = service.memory.recall(text, whose, chat.messages, chat.tools, chat.variables)
    key = service.encode(
        text,
        add_special_tokens=chat.add_special_tokens,
        param="messages",
        break_mark=mark,
        known=spans,
    )
    wishes = chat.wishes if whose is not None else ()
    kept = breakpoints_of(tokenizer, key, text, mark, wishes, render)
    return ChatPrompt(
        *(text, key, asked, kept, chat.outline(text, mark), changes), thinks=not silent
    )
