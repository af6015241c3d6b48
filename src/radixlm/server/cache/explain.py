"""POST /cache/explain: why a prompt would miss, without running it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

from pydantic import Field

from radixlm.core.errors import InvalidRequestError
from radixlm.core.keys import Key
from radixlm.core.request import Namespace
from radixlm.server.cache.reports import as_report
from radixlm.server.cache.wire import Explanation, Held
from radixlm.server.chat import chat_prompt
from radixlm.server.fields import NOT_YET, REQUEST_NO_OPS, NotYet
from radixlm.server.protocol import (
    CacheFields,
    ChatBody,
    ChatMessage,
    CompletionBody,
    TemplateFields,
    to_prompts,
)
from radixlm.server.request_model import ListOf
from radixlm.server.service import Service
from radixlm.text.misses import find
from radixlm.text.outline import Outline

_READ = {"model", "messages", "prompt", "add_special_tokens"}
_LEFT_ASIDE = (
    (REQUEST_NO_OPS | ChatBody.model_fields.keys() | CompletionBody.model_fields.keys())
    - CacheFields.model_fields.keys()
    - TemplateFields.model_fields.keys()
    - _READ
)


class ExplainBody(CacheFields, TemplateFields):
    """A body of /v1/chat/completions or of /v1/completions, of which only what makes the prompt
    counts. across_namespaces: for admins; tell which other namespaces hold more of it.
    """

    no_ops = _LEFT_ASIDE
    not_yet: ClassVar[NotYet] = {
        name: neutral for name, neutral in NOT_YET.items() if name not in _LEFT_ASIDE
    }

    model: str | None = None
    messages: Annotated[ListOf[ChatMessage], Field(min_length=1)] | None = None
    prompt: str | ListOf[str] | ListOf[int] | ListOf[ListOf[int]] | None = None
    add_special_tokens: bool | None = None
    across_namespaces: bool | None = None

    def check(self) -> None:
        """Raise InvalidRequestError unless there is exactly one of prompt and messages."""
        if (self.prompt is None) == (self.messages is None):
            raise InvalidRequestError("give either prompt or messages", param="messages")


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """The prompts to explain. outline: of messages."""

    keys: Sequence[Key]
    namespace: Namespace
    outline: Outline | None


def asked_in(service: Service, body: ExplainBody, tenant: str) -> Asked:
    """Render and tokenize: call it off the event loop. Raises InvalidRequestError."""
    service.check_model(body.model)
    body.check()
    namespace = service.isolated(body.namespace, tenant)
    special = body.add_special_tokens
    if body.messages is not None:
        prompt = chat_prompt(service, body.messages, body, add_special_tokens=bool(special))
        return Asked([prompt.key], namespace, prompt.outline)
    prompts = to_prompts(body.prompt or "", "prompt")
    keys = [
        service.key(each, add_special_tokens=special is not False, param="prompt")
        for each in prompts
    ]
    if any(not key.size for key in keys):
        raise InvalidRequestError("a prompt has no tokens", param="prompt")
    last = service.engine.info.vocab_size - 1
    if (largest := max(int(key.max()) for key in keys)) > last:
        raise InvalidRequestError(
            f"prompt holds token id {largest}, the model's ids end at {last}", param="prompt"
        )
    return Asked(keys, namespace, None)


async def explanation(
    service: Service, asked: Asked, *, everywhere: bool, shows_text: bool
) -> Explanation:
    """The answer. everywhere: for an admin, who may see what other namespaces hold."""
    reports, elsewhere = [], []
    for index, key in enumerate(asked.keys):
        told = await service.engine.explain(key, namespace=asked.namespace, everywhere=everywhere)
        found = find(service.engine.tokenizer, told.report, key, asked.outline)
        reports.append(as_report(index, told.report, found, shows_text=shows_text))
        holders = cast("Mapping[Namespace, int]", told.holders)
        elsewhere.append(_longer(holders, asked.namespace, told.report.cached))
    return (
        {"reports": reports, "longer_elsewhere": elsewhere} if everywhere else {"reports": reports}
    )


def _longer(holders: Mapping[Namespace, int], own: Namespace, cached: int) -> list[Held]:
    longer = [(n, name) for name, n in holders.items() if name != own and n > cached]
    return [
        {
            "adapter_id": name.adapter_id,
            "cache_salt": name.cache_salt,
            "extra_key": name.extra_key,
            "tokens": tokens,
        }
        for tokens, name in sorted(longer, reverse=True)
    ]
