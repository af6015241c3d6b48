"""Routes of published APIs that this server does not have, and what is said where clients probe."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from starlette.types import Scope

from radixlm.server.errors import NotFoundError, UnknownRouteError, UnsupportedRouteError

_EMBEDDINGS: Final = "Embeddings are"
_RANKING: Final = "Ranking and classifying are"
_ADAPTERS: Final = "LoRA adapters are"
_WEIGHTS: Final = "Other weights while it runs are"
_SESSIONS: Final = "Sessions are"
_OLLAMA: Final = "Ollama's API is"

# By the beginning of a path: what is not there, with its verb.
ABSENT: Mapping[str, str] = {
    "/v1/embeddings": _EMBEDDINGS,
    "/embeddings": _EMBEDDINGS,
    "/v1/embed": _EMBEDDINGS,
    "/encode": _EMBEDDINGS,
    "/pooling": _EMBEDDINGS,
    **dict.fromkeys(("/v1/rerank", "/v2/rerank", "/rerank", "/v1/score", "/score"), _RANKING),
    **dict.fromkeys(("/v1/classify", "/classify"), _RANKING),
    **dict.fromkeys(("/v1/load_lora_adapter", "/v1/unload_lora_adapter"), _ADAPTERS),
    **dict.fromkeys(("/load_lora_adapter", "/unload_lora_adapter"), _ADAPTERS),
    "/update_weights": _WEIGHTS,
    **dict.fromkeys(("/open_session", "/close_session"), _SESSIONS),
    **dict.fromkeys(("/sleep", "/wake_up"), "Sleeping and waking are"),
    **dict.fromkeys(("/start_profile", "/stop_profile"), "Profiles are"),
    "/v1/audio": "Sounds are",
    "/v1/images": "Images are",
    "/v1/moderations": "Moderation is",
    **dict.fromkeys(("/v1/files", "/v1/uploads", "/v1/batches"), "Files and batches are"),
    "/v1/messages/batches": "Batches are",
    "/v1/fine_tuning": "Training is",
    "/v1/realtime": "Realtime sessions are",
    **dict.fromkeys(("/v1/assistants", "/v1/threads", "/v1/vector_stores"), "Assistants are"),
    "/v1/conversations": "Conversations beside stored responses are",
    "/v1/responses/compact": "Compacting a conversation is",
    **dict.fromkeys(
        ("/v1/chat/completions/render", "/v1/completions/render", "/v1/responses/render"),
        "Rendering without an answer is",
    ),
    "/v1/complete": "Anthropic's older completions are",
    "/api": _OLLAMA,
}


def absence(scope: Scope, status: int) -> NotFoundError | None:
    """What is said instead of the router's own 404 or 405; None where its 405 is right."""
    path = str(scope["path"]).removeprefix(scope.get("root_path", ""))
    asked = f"{scope['method']} {path:.200}"
    parts = path.split("/")
    for end in range(len(parts), 1, -1):
        if (what := ABSENT.get("/".join(parts[:end]))) is not None:
            return UnsupportedRouteError(f"{what} not supported by this server: no {asked}")
    if status != 404:
        return None
    return UnknownRouteError(
        f"Invalid URL ({asked}): there is no such route; GET /openapi.json tells those that are"
    )
