"""The model that is served, as OpenAI's and as Anthropic's clients read it.

Sources: https://platform.openai.com/docs/api-reference/models,
https://docs.claude.com/en/api/models-list.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from typing_extensions import TypedDict

from radixlm.server.pipeline.service import Service


class ModelCard(TypedDict):
    """created: in seconds since 1970. max_model_len: tokens of prompt and answer."""

    id: str
    object: Literal["model"]
    created: int
    owned_by: str
    shutdown_date: None
    max_model_len: int


class ModelList(TypedDict):
    object: Literal["list"]
    data: list[ModelCard]


class AnthropicModel(TypedDict):
    """created_at: when serving began. max_input_tokens, max_tokens: of both together."""

    type: Literal["model"]
    id: str
    display_name: str
    created_at: str
    lifecycle: Literal["active"]
    line: None
    capabilities: None
    deprecated_at: None
    retires_at: None
    max_input_tokens: int
    max_tokens: int


class ModelPage(TypedDict):
    data: list[AnthropicModel]
    has_more: bool
    first_id: str
    last_id: str


def model_info(service: Service) -> AnthropicModel:
    """The model that is served, as Anthropic shapes it."""
    length = service.longest
    return {
        "type": "model",
        "id": service.model_name,
        "display_name": service.model_name,
        "created_at": datetime.fromtimestamp(service.created, UTC).isoformat(),
        "lifecycle": "active",
        "line": None,
        "capabilities": None,
        "deprecated_at": None,
        "retires_at": None,
        "max_input_tokens": length,
        "max_tokens": length,
    }


def model_page(service: Service) -> ModelPage:
    """All of them, which is one."""
    name = service.model_name
    return {"data": [model_info(service)], "has_more": False, "first_id": name, "last_id": name}


def model_card(service: Service) -> ModelCard:
    """The model that is served, as OpenAI shapes it."""
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "radixlm",
        "shutdown_date": None,
        "max_model_len": service.engine.info.context_length,
    }
