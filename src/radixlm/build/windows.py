"""Slots of their own for layers that see a sliding window."""

from __future__ import annotations

import logging
from typing import NamedTuple

from radixlm.cache.window_slots import WindowSize, WindowSlots
from radixlm.core.config import EngineConfig
from radixlm.memory.pools import WindowLayers
from radixlm.models import ModelConfig

_logger = logging.getLogger("radixlm.build")


class Windows(NamedTuple):
    """layers: that see a window, of all `n_layers`. window: the largest. ratio: their slots for
    each that the other layers have; 1: all layers have the same slots.
    """

    layers: frozenset[int]
    n_layers: int
    window: int
    ratio: float

    @classmethod
    def of(cls, config: EngineConfig, model: ModelConfig) -> Windows:
        """Stores keep whole blocks: with one nothing is given up."""
        found = {layer: window for layer, window in enumerate(model.windows) if window is not None}
        ratio = config.swa_full_tokens_ratio
        whole = {
            "--host-kv-tokens": config.host_kv_tokens,
            "--disk-cache": config.disk_cache,
        }
        flags = " and ".join(flag for flag, given in whole.items() if given)
        if found and ratio < 1 and flags:
            _logger.info("layers with a window keep all tokens, as %s needs them", flags)
            ratio = 1.0
        window = max(found.values(), default=0)
        return cls(frozenset(found), model.n_layers, window, ratio if found else 1.0)

    @property
    def paid_layers(self) -> float:
        """How many layers with all slots take as much memory."""
        return self.n_layers - (1 - self.ratio) * len(self.layers)

    def size(self, config: EngineConfig, capacity: int) -> WindowSize | None:
        """None: all layers have the same slots."""
        if self.ratio == 1:
            return None
        most = config.chunked_prefill_size
        return WindowSize.of(self.window, self.ratio, capacity, config.page_size, most)

    def in_pool(self, slots: WindowSlots | None) -> WindowLayers | None:
        return None if slots is None else WindowLayers(self.layers, slots.capacity)
