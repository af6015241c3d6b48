"""Which architectures there are, by the config's `model_type`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from radixlm.models.config_fields import Fields, Traits
from radixlm.models.llama import llama
from radixlm.models.mistral import mistral
from radixlm.models.qwen2 import qwen2
from radixlm.models.qwen3 import qwen3

ARCHITECTURES: Mapping[str, Callable[[Fields], Traits]] = MappingProxyType(
    {"llama": llama, "mistral": mistral, "qwen2": qwen2, "qwen3": qwen3}
)


def read_traits(config: Fields) -> Traits:
    """What sets the config's architecture apart.

    Raises UnsupportedModelError for a `model_type` that is not among ARCHITECTURES.
    """
    architecture = ARCHITECTURES.get(str(config.get("model_type")))
    if architecture is None:
        raise config.wrong("model_type", ", ".join(ARCHITECTURES))
    return architecture(config)
