"""What the user left open, or asked for, against what the model and the machine have."""

from __future__ import annotations

import torch

from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError, UnsupportedModelError
from radixlm.core.processors import processors_allowed, threads_for
from radixlm.models.model_config import ModelConfig

# Pins may keep at most 1 / this of the pool.
_PINS_IN_POOL = 4


def resolve_device(name: str) -> torch.device:
    """Raises ConfigError for a device that is not there."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"--device {name!r} is not a device: {error}") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device {name!r}: only cpu and cuda are supported")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"--device {name!r}: torch sees no CUDA device on this machine")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"--device {name!r}: torch sees {torch.cuda.device_count()} CUDA devices, from cuda:0"
        )
    return device


def resolve_dtype(config: EngineConfig, model: ModelConfig) -> torch.dtype:
    """What weights and KV are kept in."""
    if config.dtype == "float32":
        return torch.float32
    if config.dtype == "bfloat16":
        return torch.bfloat16
    # float16 checkpoints run in bfloat16: the CPU has no float16 products worth having.
    return torch.bfloat16 if model.dtype == torch.float16 else model.dtype


def resolve_threads(config: EngineConfig, torch_threads: int) -> int:
    """How many compute. torch_threads: torch's own choice, by affinity and OMP_NUM_THREADS."""
    return config.threads or min(torch_threads, threads_for(processors_allowed()))


def resolve_pin_budget(config: EngineConfig, capacity: int, context: int) -> int:
    """Most pinned tokens. Left open, it makes no prompt too long that would fit without pins."""
    if config.max_pinned_tokens is not None:
        return config.max_pinned_tokens
    if config.disable_radix_cache:
        return 0
    return min(capacity // _PINS_IN_POOL, max(capacity - context, 0))


def resolve_context(config: EngineConfig, model: ModelConfig) -> int:
    """Most tokens of prompt and answer. Raises ConfigError for more than the model's own, and
    UnsupportedModelError where a sliding window would cut something off.
    """
    wanted = config.context_length
    window = model.traits.sliding_window
    if window is not None and window < (wanted or model.context_length):
        raise UnsupportedModelError(
            f"the model sees only the last {window} tokens of its context of "
            f"{model.context_length} (config field 'sliding_window'), which is not supported yet; "
            f"--context-length {window} serves it up to there, where the window does not matter"
        )
    if wanted is None:
        return model.context_length
    if wanted > model.context_length:
        raise ConfigError(
            f"--context-length {wanted} is more than the model's {model.context_length}"
        )
    return wanted
