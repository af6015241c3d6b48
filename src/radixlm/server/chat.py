"""/v1/chat/completions: messages to a job, outputs to `choices`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from radixlm.core.keys import Key
from radixlm.core.request import FinishReason, RequestOutput
from radixlm.server.generation import Job
from radixlm.server.logprobs import chat_logprobs
from radixlm.server.protocol import ChatBody, ChatMessage, TemplateFields, to_messages
from radixlm.server.service import Service
from radixlm.server.wire import ChatChoice, ChatChunkChoice, ChatDelta, ChatLogprobs
from radixlm.text.chat_template import require_template
from radixlm.text.tokenizer import Tokenizer


def chat_job(service: Service, body: ChatBody, tenant: str) -> Job:
    """Render and tokenize. Takes time in proportion to the messages: call it off the event loop.

    Raises InvalidRequestError that names the field.
    """
    service.check_model(body.model)
    params = body.to_params()
    key = chat_key(service, body.messages, body, add_special_tokens=bool(body.add_special_tokens))
    return Job(
        request_id=f"chatcmpl-{uuid.uuid4().hex}",
        prompts=[key],
        n=body.n or 1,
        params=params,
        namespace=body.namespace,
        priority=body.priority or 0,
        tenant=tenant,
    )


def chat_key(
    service: Service,
    messages: Sequence[ChatMessage],
    fields: TemplateFields,
    *,
    add_special_tokens: bool,
) -> Key:
    """The messages' prompt, by the model's template. Raises InvalidRequestError."""
    template = require_template(service.engine.chat_template)
    text = template.render(to_messages(messages), **fields.template_variables())
    return service.encode(text, add_special_tokens=add_special_tokens, param="messages")


class ChatShape:
    """OpenAI's chat choices. Source: https://platform.openai.com/docs/api-reference/chat."""

    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, job: Job) -> None:
        self._tokenizer = tokenizer
        self._with_logprobs = job.params.logprobs is not None
        self._begun: set[int] = set()

    def whole(self, choice: int, output: RequestOutput) -> ChatChoice:
        return {
            "index": choice,
            "message": {"role": "assistant", "content": output.text, "refusal": None},
            "logprobs": self._logprobs(output),
            "finish_reason": output.finish_reason,
        }

    def chunks(self, choice: int, output: RequestOutput) -> list[ChatChunkChoice]:
        """The role comes first and alone, the finish reason last and alone."""
        entries = []
        if choice not in self._begun:
            self._begun.add(choice)
            entries.append(_chunk(choice, {"role": "assistant", "content": ""}))
        logprobs = self._logprobs(output) if output.logprobs else None
        if output.text or logprobs:
            entries.append(_chunk(choice, {"content": output.text}, logprobs=logprobs))
        if output.finish_reason is not None:
            entries.append(_chunk(choice, {}, finish_reason=output.finish_reason))
        return entries

    def _logprobs(self, output: RequestOutput) -> ChatLogprobs | None:
        return chat_logprobs(self._tokenizer, output.logprobs) if self._with_logprobs else None


def _chunk(
    choice: int,
    delta: ChatDelta,
    *,
    logprobs: ChatLogprobs | None = None,
    finish_reason: FinishReason | None = None,
) -> ChatChunkChoice:
    return {
        "index": choice,
        "delta": delta,
        "logprobs": logprobs,
        "finish_reason": finish_reason,
    }
