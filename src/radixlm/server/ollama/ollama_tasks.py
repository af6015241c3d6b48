"""The way from Ollama's bodies to what is to be generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from radixlm.core.errors import wrong
from radixlm.parsers import PlainParser
from radixlm.parsers.tools import Calling, ToolUse
from radixlm.server.bodies.answer_fields import tool_use, tools_for_template
from radixlm.server.bodies.chat_conversation import specs_of
from radixlm.server.bodies.conversation import Conversation, Thread, new_id
from radixlm.server.http.body import in_callers_words, not_too_deep
from radixlm.server.ollama import ollama_body as bodies
from radixlm.server.pipeline.chat import ChatPrompt, ChatTask, chat_prompt, task_of
from radixlm.server.pipeline.generation import Generation
from radixlm.server.pipeline.pooled import embedding_generation
from radixlm.server.pipeline.service import Service

_LATEST = ":latest"
B = TypeVar("B", bound=bodies.OllamaBody)


def own_name(service: Service, name: str | None) -> str | None:
    """The name that this server has for a model, without Ollama's tag. Raises ModelNotFoundError
    for one that is not served.
    """
    if name is not None and name not in service.model_names:
        name = name.removesuffix(_LATEST)
    service.check_model(name)
    return name


def check_unasked(service: Service, body: bodies.AnsweredBody) -> None:
    """Check what asks for no answer as if it did. Raises InvalidRequestError that names the field,
    and ModelNotFoundError.
    """
    own_name(service, body.model)
    with in_callers_words(bodies.NAMES):
        body.to_params(service.sampling_defaults)


def _named(service: Service, body: B) -> B:
    return body.model_copy(update={"model": own_name(service, body.model)})


@not_too_deep()
def chat_task(service: Service, body: bodies.OllamaChatBody, tenant: str) -> ChatTask:
    """Render and tokenize; call it off the event loop. Raises InvalidRequestError that names the
    field.
    """
    body = _named(service, body)
    specs = specs_of(body.tools)
    chat = Conversation(
        _messages(body.messages or ()), tools_for_template(specs), thinking=body.thinking_wish
    )
    use = tool_use(specs, Calling.AUTO if specs else None, parallel=True)
    return _answered(service, chat, use, body, tenant, {**bodies.NAMES, "prompt": "messages"})


@not_too_deep()
def generate_task(service: Service, body: bodies.OllamaGenerateBody, tenant: str) -> ChatTask:
    """The same of one prompt: as a user's message, unless it is raw or there is no template."""
    body = _named(service, body)
    names = {**bodies.NAMES, "messages": "prompt"}
    if not body.raw and service.engine.chat_template is not None:
        thread = Thread("no call")
        if body.system:
            thread.begin("system", content=body.system)
        thread.begin("user", content=body.prompt or "")
        chat = Conversation(thread.messages(), thinking=body.thinking_wish)
        return _answered(service, chat, ToolUse(), body, tenant, names)
    if body.system:
        raise wrong("system", "needs a chat template, and raw not to be true")
    with in_callers_words(names):
        text = body.prompt or ""
        key = service.key(text, add_special_tokens=True, param="prompt")
        params = body.to_params(service.sampling_defaults)
        generation = Generation.of(
            *(service, new_id("gen"), [key], [params], body, tenant), names=names
        )
    return ChatTask(generation, ChatPrompt(text, key), PlainParser)


def _answered(
    service: Service,
    chat: Conversation,
    use: ToolUse,
    body: bodies.AnsweredBody,
    tenant: str,
    names: Mapping[str, str],
) -> ChatTask:
    with in_callers_words(names):
        params = body.to_params(service.sampling_defaults)
        prompt = chat_prompt(service, chat, whose=(tenant, *service.namespace_of(body)))
        return task_of(
            *(service, prompt, use, params, body, tenant), request_id=new_id("chat"), names=names
        )


def _messages(given: Sequence[bodies.OllamaMessagePart]) -> list[dict[str, object]]:
    thread = Thread("no call of the assistant's message")
    waiting: dict[str, str] = {}  # the names of tools, by the ids of calls
    for place, message in enumerate(given):
        path = f"messages[{place}]"
        if message.tool_calls and message.role != "assistant":
            raise wrong(f"{path}.tool_calls", "is for messages of role 'assistant'")
        if message.role == "tool":
            alike = (each for each, name in waiting.items() if name == message.tool_name)
            answered = message.tool_call_id or next(alike, None) or next(iter(waiting), "")
            name = message.tool_name or waiting.get(answered)
            thread.result(answered, message.content or "", f"{path}.tool_name", name)
            waiting.pop(answered, None)
            continue
        made = thread.begin(message.role, content=message.content or "")
        if message.thinking:
            made["reasoning_content"] = message.thinking
        waiting = {}
        for at, call in enumerate(message.tool_calls or ()):
            # The same each time: a prompt may hold it.
            call_id = call.id or f"call_{place}_{at}"
            waiting[call_id] = call.function.name
            where = f"{path}.tool_calls[{at}].id"
            thread.call(call_id, call.function.name, call.function.arguments, where)
    return thread.messages()


@not_too_deep()
def embed_task(
    service: Service,
    body: bodies.OllamaBody,
    texts: Sequence[str],
    tenant: str,
    *,
    param: str,
    dimensions: int | None = None,
) -> Generation:
    """Tokenize; call it off the event loop. param: the field that holds the texts. Raises
    InvalidRequestError that names the field.
    """
    return embedding_generation(
        *(service, _named(service, body), texts, tenant), param=param, dimensions=dimensions
    )
