"""/v1/chat/completions: messages to a job, outputs to `choices`."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from radixlm.core.keys import Key
from radixlm.core.request import FinishReason, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.server.generation import Job
from radixlm.server.logprobs import chat_logprobs
from radixlm.server.protocol import ChatBody, ChatMessage, TemplateFields, to_messages
from radixlm.server.service import Service
from radixlm.server.spoken import NOTHING, Cut, Spoken
from radixlm.server.wire import (
    ChatChoice,
    ChatChoices,
    ChatChunkChoice,
    ChatChunkChoices,
    ChatDelta,
    ChatLogprobs,
    PromptIds,
    Tier,
    TokenIds,
)
from radixlm.text.chat_template import as_plain_text, require_template
from radixlm.text.tokenizer import Tokenizer, new_mark


def chat_job(service: Service, body: ChatBody, tenant: str) -> Job:
    """Render and tokenize. Takes time in proportion to the messages: call it off the event loop.

    Raises InvalidRequestError that names the field.
    """
    service.check_model(body.model)
    params = body.to_params(service.sampling_defaults)
    key = chat_key(service, body.messages, body, add_special_tokens=bool(body.add_special_tokens))
    return job_of(body, key, params, tenant, request_id=f"chatcmpl-{uuid.uuid4().hex}")


def job_of(
    body: ChatBody, key: Key, params: SamplingParams, tenant: str, *, request_id: str
) -> Job:
    """The job of a chat whose prompt is tokenized."""
    return Job(
        request_id=request_id,
        prompts=[key],
        n=body.n or 1,
        params=params,
        namespace=body.namespace,
        priority=body.priority or 0,
        tenant=tenant,
    )


class ChatPrompt(NamedTuple):
    """text: as the template wrote it, with `mark` in it; see `as_plain_text`.

    kept: how much of it was there before.
    """

    text: str
    mark: str
    key: Key
    kept: Cut


def chat_key(
    service: Service,
    messages: Sequence[ChatMessage],
    fields: TemplateFields,
    *,
    add_special_tokens: bool,
) -> Key:
    """The messages' prompt, by the model's template. Raises InvalidRequestError."""
    return chat_prompt(service, messages, fields, add_special_tokens=add_special_tokens).key


def chat_prompt(
    service: Service,
    messages: Sequence[ChatMessage],
    fields: TemplateFields,
    *,
    add_special_tokens: bool,
    before: Spoken | None = None,
) -> ChatPrompt:
    """The messages' prompt, by the model's template. Raises InvalidRequestError.

    before: the same conversation up to here, whose tokens are taken again where its text is.
    """
    template = require_template(service.engine.chat_template)
    mark = new_mark() if before is None else before.mark
    plain = as_plain_text(
        to_messages(messages),
        service.engine.tokenizer,
        mark,
        continue_final_message=bool(fields.continue_final_message),
    )
    text = template.render(plain, **fields.template_variables())
    kept = NOTHING if before is None else before.shared_with(text)
    key = service.encode(
        text[kept.chars :],
        add_special_tokens=add_special_tokens and not kept.tokens,
        param="messages",
        break_mark=mark,
    )
    if before is not None:
        key = np.concatenate([before.key[: kept.tokens], key])
    return ChatPrompt(text, mark, key, kept)


class ChatShape:
    """OpenAI's chat answers, token ids where vLLM has them.

    Source: https://platform.openai.com/docs/api-reference/chat.
    """

    whole_kind = "chat.completion"
    chunk_kind = "chat.completion.chunk"

    def __init__(self, tokenizer: Tokenizer, job: Job, body: ChatBody) -> None:
        self._tokenizer = tokenizer
        self._prompt = job.prompts[0]
        self._with_logprobs = job.params.logprobs is not None
        self._with_ids = bool(body.return_token_ids)
        # OpenAI says which tier it was only where one was asked for.
        self._tier: Tier = {} if body.service_tier is None else {"service_tier": "default"}
        self._begun: set[int] = set()

    def whole(self, outputs: Sequence[RequestOutput]) -> ChatChoices:
        choices = [self._choice(choice, output) for choice, output in enumerate(outputs)]
        return {"choices": choices, **self._tier, **self._prompt_ids()}

    def chunks(self, choice: int, output: RequestOutput) -> list[ChatChunkChoices]:
        """The role comes first and alone, the finish reason last and alone."""
        made: list[ChatChunkChoices] = []
        if choice not in self._begun:
            self._begun.add(choice)
            first: ChatDelta = {"role": "assistant", "content": "", "refusal": None}
            made.append(self._chunk(choice, first, prompt_ids=self._prompt_ids()))
        logprobs = self._logprobs(output) if output.logprobs else None
        if output.text or logprobs or (self._with_ids and output.token_ids):
            text: ChatDelta = {"content": output.text}
            made.append(self._chunk(choice, text, logprobs=logprobs, token_ids=output.token_ids))
        if output.finish_reason is not None:
            made.append(self._chunk(choice, {}, finish_reason=output.finish_reason))
        return made

    def _choice(self, choice: int, output: RequestOutput) -> ChatChoice:
        return {
            "index": choice,
            "message": {
                "role": "assistant",
                "content": output.text,
                "refusal": None,
                "annotations": [],
            },
            "logprobs": self._logprobs(output),
            "finish_reason": output.finish_reason,
            **self._ids(output.token_ids),
        }

    def _chunk(
        self,
        choice: int,
        delta: ChatDelta,
        *,
        logprobs: ChatLogprobs | None = None,
        finish_reason: FinishReason | None = None,
        token_ids: Sequence[int] = (),
        prompt_ids: PromptIds | None = None,
    ) -> ChatChunkChoices:
        entry: ChatChunkChoice = {
            "index": choice,
            "delta": delta,
            "logprobs": logprobs,
            "finish_reason": finish_reason,
            **self._ids(token_ids),
        }
        return {"choices": [entry], **self._tier, **(prompt_ids or {})}

    def _ids(self, token_ids: Sequence[int]) -> TokenIds:
        return {"token_ids": list(token_ids)} if self._with_ids else {}

    def _prompt_ids(self) -> PromptIds:
        return {"prompt_token_ids": self._prompt.tolist()} if self._with_ids else {}

    def _logprobs(self, output: RequestOutput) -> ChatLogprobs | None:
        return chat_logprobs(self._tokenizer, output.logprobs) if self._with_logprobs else None
