"""Qwen 1.5, 2 and 2.5: biases on q, k and v, never on the output, whatever the config says."""

from __future__ import annotations

from radixlm.models.config_fields import Fields, Traits

_UNWINDOWED_LAYERS_WHEN_UNNAMED = 28  # transformers' default of max_window_layers


def qwen2(config: Fields) -> Traits:
    return Traits(qkv_bias=True, sliding_window=sliding_window(config))


def sliding_window(config: Fields) -> int | None:
    """The window of the layers that have one; None when no layer has.

    `use_sliding_window` switches it on for the layers from `max_window_layers` up, unless
    `layer_types` names the layers one by one.
    """
    kinds = config.names("layer_types")
    if kinds is not None and any(kind not in _LAYER_KINDS for kind in kinds):
        raise config.wrong("layer_types", " and ".join(_LAYER_KINDS))
    if not config.flag("use_sliding_window") or config.get("sliding_window") is None:
        return None
    if kinds is None:
        # 0, which is no positive integer, has a meaning here: every layer has the window.
        every = config.get("max_window_layers") == 0
        full = 0 if every else config.integer("max_window_layers", _UNWINDOWED_LAYERS_WHEN_UNNAMED)
        windowed = full < config.integer("num_hidden_layers")
    else:
        windowed = "sliding_attention" in kinds
    return config.integer("sliding_window") if windowed else None


_LAYER_KINDS = ("full_attention", "sliding_attention")
