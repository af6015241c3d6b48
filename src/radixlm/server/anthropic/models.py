"""/v1/models as Anthropic's clients read it.

Source: https://docs.claude.com/en/api/models-list.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Literal

from typing_extensions import TypedDict

from radixlm.server.pipeline.service import Service


class ModelInfo(TypedDict):
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
    data: list[ModelInfo]
    has_more: bool
    first_id: str
    last_id: str


def model_info(service: Service) -> ModelInfo:
    """The model that is served."""
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
    """All of them: one."""
    name = service.model_name
    return {"data": [model_info(service)], "has_more": False, "first_id": name, "last_id": name}
