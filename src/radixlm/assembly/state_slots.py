"""Slots for the states of models that carry some from token to token."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError
from radixlm.memory.pools import default_kv_tokens
from radixlm.memory.state_pool import StatePool, StateShape
from radixlm.models.model_config import ModelConfig

# Bytes of states by default, for each of the KV pool; and how many there are, whatever they take.
STATE_SHARE = 0.9
_FEWEST, _MOST = 16, 4096


class States(NamedTuple):
    """The states of a model. shapes: of each layer; empty: it has none. capacity: slots."""

    shapes: tuple[StateShape, ...]
    dtype: torch.dtype
    device: torch.device
    capacity: int

    @classmethod
    def of(
        cls,
        config: EngineConfig,
        model: ModelConfig,
        dtype: torch.dtype,
        kv_bytes: int,
        device: torch.device,
    ) -> States:
        """Count them as the config asks, or beside a KV pool of `kv_bytes`."""
        shapes, capacity = model.state_shapes, config.max_mamba_cache_size or 0
        if shapes and not capacity:
            each = sum(shape.nbytes(dtype) for shape in shapes)
            room = int(STATE_SHARE * kv_bytes) // each
            if not kv_bytes:  # all layers have states alone
                room = default_kv_tokens(each, device)
            capacity = max(_FEWEST, min(_MOST, room))
        return cls(shapes, dtype, device, capacity if shapes else 0)

    @property
    def nbytes(self) -> int:
        """Bytes of all slots together."""
        return self.capacity * sum(shape.nbytes(self.dtype) for shape in self.shapes)

    def pool(self) -> StatePool | None:
        """Make the pool. Raises ConfigError."""
        if not self.shapes:
            return None
        try:
            return StatePool(self.shapes, self.capacity, self.dtype, self.device)
        except (RuntimeError, MemoryError, ValueError) as error:
            raise ConfigError(
                f"no memory for {self.capacity} states (--max-mamba-cache-size): {error}"
            ) from None

    def described(self) -> dict[str, Any]:
        """Fields of ModelInfo."""
        return {"mamba_slots": self.capacity, "mamba_bytes": self.nbytes}
