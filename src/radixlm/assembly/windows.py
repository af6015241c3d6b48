"""Slots of their own for layers that see a sliding window."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from radixlm.cache.components.window_slots import WindowSize, WindowSlots
from radixlm.core.config import EngineConfig
from radixlm.memory.pools import WindowLayers, bytes_per_token
from radixlm.models import ModelConfig


class Windows(NamedTuple):
    """layers: that see a window. window: the largest. ratio: their slots for
    each that the other layers have; 1: all layers have the same slots. beside: bytes of a token in
    a draft head.
    """

    layers: frozenset[int]
    window: int
    ratio: float
    beside: int = 0

    @classmethod
    def of(cls, config: EngineConfig, model: ModelConfig) -> Windows:
        found = {layer: window for layer, window in enumerate(model.windows) if window is not None}
        ratio = config.swa_full_tokens_ratio if found else 1.0
        return cls(frozenset(found), max(found.values(), default=0), ratio)

    def share(self, layer: int) -> float:
        """The part of a layer's memory that it takes."""
        return self.ratio if layer in self.layers else 1.0

    def token_bytes(self, config: EngineConfig, model: ModelConfig, dtype: torch.dtype) -> float:
        """Bytes of a token's keys and values in all layers."""
        coded, latent = config.kv_cache_dtype == "int8", model.traits.latents is not None
        kinds: dict[str, Any] = {"coded": coded, "latent": latent}
        return self.beside + sum(
            self.share(layer)
            * bytes_per_token(1, *its[:2], dtype, index_dim=its.index_dim, **kinds)
            for layer, its in enumerate(model.kv_shapes)
            if its.source is None
        )

    def size(self, config: EngineConfig, capacity: int) -> WindowSize | None:
        """None: all layers have the same slots."""
        if self.ratio == 1:
            return None
        most, places = config.chunked_prefill_size, config.disk_cache or config.host_kv_tokens
        block = config.disk_block_tokens if places else 1
        return WindowSize.of(self.window, self.ratio, capacity, config.page_size, most, block)

    def in_pool(self, slots: WindowSlots | None) -> WindowLayers | None:
        return None if slots is None else WindowLayers(self.layers, slots.capacity)
