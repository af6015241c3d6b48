"""The memory of an engine's tokens: how many it has room for, and what they are kept in."""

from __future__ import annotations

import torch

from radixlm.assembly.state_slots import STATE_SHARE
from radixlm.assembly.windows import Windows
from radixlm.core.batch import MOST_SIBLINGS
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError
from radixlm.memory.pools import (
    HeadRows,
    KVPool,
    ReqToTokenPool,
    WindowLayers,
    default_kv_tokens,
)
from radixlm.models.model_config import ModelConfig


def default_tokens(
    config: EngineConfig,
    model: ModelConfig,
    windows: Windows,
    dtype: torch.dtype,
    device: torch.device,
) -> int:
    """Tokens of this model that the device has room for, beside its states."""
    of_token = windows.token_bytes(config, model, dtype)
    paid = of_token * (1 + STATE_SHARE) if model.state_shapes else of_token
    return default_kv_tokens(max(int(paid), 1), device)


def make_memory(
    config: EngineConfig,
    model: ModelConfig,
    capacity: int,
    longest: int,
    windows: WindowLayers | None,
    dtype: torch.dtype,
    device: torch.device,
    head: HeadRows | None = None,
) -> tuple[KVPool, ReqToTokenPool]:
    """Raises ConfigError."""
    n_rows = config.request_rows
    shape = model.n_layers, capacity, model.n_kv_heads, model.head_dim
    coded, latent = config.kv_cache_dtype == "int8", model.traits.latents is not None
    try:
        return (
            KVPool(
                *shape,
                dtype,
                device,
                coded=coded,
                latent=latent,
                windows=windows,
                shapes=model.kv_shapes,
                head=head,
            ),
            ReqToTokenPool(n_rows + MOST_SIBLINGS, longest, device),
        )
    except (RuntimeError, MemoryError, ValueError) as error:
        raise ConfigError(
            f"no memory for a KV pool of {capacity} tokens (--kv-tokens) and a table of "
            f"{n_rows} requests (--max-running-requests): {error}"
        ) from None
