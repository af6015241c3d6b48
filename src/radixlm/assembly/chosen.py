"""The choices that a config asks for, checked against the model and the machine before anything is
loaded.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from radixlm.assembly.heads import check_head
from radixlm.assembly.model_impl import config_of
from radixlm.assembly.rank_setup import check_ranks
from radixlm.assembly.resolve import resolve_context, resolve_device, resolve_dtype
from radixlm.attention.backends import check_deterministic
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError
from radixlm.core.flags import option_name
from radixlm.formats.model_files import ModelFiles, files_of
from radixlm.layers.mamba1 import Mamba1Sizes
from radixlm.layers.rg_lru import LruSizes
from radixlm.memory.pools import MOST_TOKENS
from radixlm.models.model_config import ModelConfig
from radixlm.text.hub import fetched
from radixlm.text.model_folder import loadable

_NOT_WITH_STATES = ("tp_size", "lora_paths")
_PLACES = ("host_kv_tokens", "disk_cache")


def chosen(config: EngineConfig) -> tuple[ModelFiles, ModelConfig, torch.device, torch.dtype]:
    """Choose what is to be loaded, and where; nothing is loaded yet. Raises ConfigError,
    ModelError.
    """
    files = files_of(loadable(fetched(config.model, config.revision)))
    model = config_of(config, files)
    _check_latents(config, model)
    _check_states(config, model)
    check_head(config, files, model)
    device = resolve_device(config.device)
    dtype = resolve_dtype(config, model, device)
    if config.deterministic:
        check_deterministic(dtype, device, reached_of(config, model).windows)
    if config.tp_size > 1:
        check_ranks(config, files, model, device)
    return files, model, device, dtype


def reached_of(config: EngineConfig, model: ModelConfig) -> ModelConfig:
    """The model as it is served, with the context that can be reached. Answers do not depend on the
    pool's size, only how many positions there are. Raises ConfigError.
    """
    context = resolve_context(config, model)
    return replace(model, context_length=min(context, config.kv_tokens or MOST_TOKENS))


def _check_states(config: EngineConfig, model: ModelConfig) -> None:
    """Raises ConfigError for what does not go with states yet, before they are loaded."""
    if not model.state_shapes:
        return
    by_torch = isinstance(model.traits.state, Mamba1Sizes | LruSizes)  # its scan, or its gates
    for name in (*_NOT_WITH_STATES, *(("deterministic",) if by_torch else ())):
        if getattr(config, name) != EngineConfig.__dataclass_fields__[name].default:
            flag = option_name(name)
            raise ConfigError(f"{flag} does not know the states of {model.model_type} yet")
    for name in _PLACES if set(model.mixers) == {"state"} else ():
        if getattr(config, name):
            raise ConfigError(
                f"{option_name(name)} does not store the states of {model.model_type} yet, a model "
                "without keys and values"
            )


def _check_latents(config: EngineConfig, model: ModelConfig) -> None:
    """Raises ConfigError for what is not for models with latents, before they are loaded."""
    if model.traits.latents is None:
        return
    if config.kv_cache_dtype == "int8":
        raise ConfigError(
            f"--kv-cache-dtype int8 is not for {model.model_type}, whose latents are short already"
        )
    if config.deterministic:
        raise ConfigError(f"--deterministic does not know the latents of {model.model_type}")
