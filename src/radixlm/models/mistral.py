"""Mistral 7B and its dense successors: Llama without biases, the first version with a window."""

from __future__ import annotations

from radixlm.models.config_fields import Fields, Traits

_WINDOW_WHEN_UNNAMED = 4096  # transformers' default; only an explicit null means no window


def mistral(config: Fields) -> Traits:
    if "sliding_window" in config.values and config.get("sliding_window") is None:
        return Traits()
    return Traits(sliding_window=config.integer("sliding_window", _WINDOW_WHEN_UNNAMED))
