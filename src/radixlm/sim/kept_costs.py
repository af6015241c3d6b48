"""Measured costs, kept beside the compiled kernels: a file for each model and way of running it."""

from __future__ import annotations

import os
from hashlib import blake2b
from pathlib import Path

from radixlm.bench.processor_name import processor
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError, reason_of
from radixlm.formats.private_files import replace_private
from radixlm.sim.costs import Costs, read_costs
from radixlm.text.model_folder import DEMO_NAME

FOLDER = Path("~/.cache/radixlm/costs")
# Flags that change what a step takes.
FLAGS = (
    "device",
    "dtype",
    "kv_cache_dtype",
    "quantization",
    "threads",
    "deterministic",
    "model_impl",
)


def costs_path(config: EngineConfig, folder: Path = FOLDER) -> Path:
    """The path where this model's costs are kept, as it would be run on this machine."""
    model = "" if config.model is None else str(Path(config.model).resolve())
    flags = [str(getattr(config, name)) for name in FLAGS]
    parts = (model, *flags, processor(), str(os.cpu_count()))
    digest = blake2b("\n".join(parts).encode(), digest_size=6).hexdigest()
    return folder.expanduser() / f"{Path(model).name or DEMO_NAME}-{digest}.json"


def kept_costs(config: EngineConfig, folder: Path = FOLDER) -> Costs:
    """Raises ConfigError where nothing was measured, or what is kept is damaged."""
    path = costs_path(config, folder)
    if not path.is_file():
        model = config.model or DEMO_NAME
        raise ConfigError(
            f"nobody has measured what steps of {model} take on this machine, with these flags: "
            "run radixlm sim --calibrate first, with the same --model and flags"
        )
    return read_costs(path)


def keep_costs(costs: Costs, config: EngineConfig, folder: Path = FOLDER) -> Path:
    """Readers see all of the file or none of it. Raises ConfigError where it can not be written."""
    path = costs_path(config, folder)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace_private(path, costs.written().encode())
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {reason_of(error)}") from None
    return path
