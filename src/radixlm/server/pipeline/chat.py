"""From a chat's messages to its prompt, and what is to be generated for it."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from radixlm.core.keys import Key
from radixlm.core.request import Breakpoint
from radixlm.observe.outline import Outline
from radixlm.parsers import AnswerParser
from radixlm.server.http.body import not_too_deep
from radixlm.server.pipeline.answer_memory import Asked, Span
from radixlm.server.pipeline.cache_control import Wish, breakpoints_of, wishes_in
from radixlm.server.pipeline.generation import Generation, requests_for
from radixlm.server.pipeline.protocol import ChatBody, ChatMessage, TemplateFields
from radixlm.server.pipeline.rendering import Rendering
from radixlm.server.pipeline.service import Service
from radixlm.server.pipeline.tool_fields import tool_use
from radixlm.text.chat_template import require_template


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
    """new_parser: makes a parser for one of its answers."""

    generation: Generation
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
    prompt_only: bool = False,
) -> ChatTask:
    """The task of a chat, whichever route it comes by. Raises InvalidRequestError.

    make_prompt: called when all else was found right.
    max_tokens: in place of the body's own: as many as there is room for, and these at most.
    prompt_only: nothing is to be generated.
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
    n = body.n or 1
    generation = Generation(
        request_id,
        requests_for(
            *(service, request_id, [prompt.key], [params], body, tenant),
            n=n,
            breakpoints=prompt.breakpoints,
        ),
        n,
        prompt_only=[prompt_only],
        asked=prompt.asked,
        outline=prompt.outline,
        cache_report=bool(body.cache_report),
        cached_details=bool(body.return_cached_tokens_details),
    )
    return ChatTask(generation, prompt, partial(style.parser, use, prompt.text))


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
