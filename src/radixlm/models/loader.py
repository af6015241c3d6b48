"""A checkpoint's tensors, one by one, straight into the model's preallocated memory."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from radixlm.core.errors import CheckpointError
from radixlm.core.wording import counted
from radixlm.models.config import ModelConfig
from radixlm.models.decoder import CausalLM
from radixlm.models.shards import StoredTensor, open_shard, survey

_HARMLESS = ".rotary_emb.inv_freq"  # old checkpoints store what the config says anyway
_NAMES_SHOWN = 5


def load_model(
    folder: Path,
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    progress: bool = True,
) -> CausalLM:
    """Build the model that `config` describes and fill it from the folder's safetensors files.

    dtype: the type on the device; stored tensors of another one are converted on the way.
    progress: show a bar, in bytes, on stderr when that is a terminal.
    Memory: the weights and one tensor. All names and shapes are checked before any data is read.
    Raises CheckpointError that names the tensor or the file.
    """
    wanted = _matched(survey(folder), config)
    try:
        model = CausalLM(config, dtype=dtype, device=device)
    except (RuntimeError, MemoryError) as error:
        raise CheckpointError(f"no memory for the weights of {folder}: {error}") from None
    weights = model.weights()
    total = sum(weight.nbytes for weight in weights.values())
    # disable=None: no bar where stderr is no terminal, so that logs stay readable.
    off = None if progress else True
    with tqdm(total=total, desc="loading weights", unit="B", unit_scale=True, disable=off) as bar:
        for name, tensor in wanted.items():
            # Opened anew for each tensor: a handle keeps every page that was read through it
            # mapped, so at its end a second copy of the shard would be resident.
            with open_shard(tensor.shard) as file:
                weights[name].copy_(file.get_tensor(name))
            bar.update(weights[name].nbytes)
    return model


def _described(config: ModelConfig, stored: int) -> dict[str, Tensor]:
    """The weights that `config` asks for, without memory, so that whatever it says costs nothing.

    stored: how many tensors there are, of which each layer has some.
    """
    if config.n_layers > stored:
        raise CheckpointError(
            f"config.json asks for {config.n_layers} layers (num_hidden_layers), "
            f"but the files hold {stored} tensors"
        )
    nowhere = torch.device("meta")
    try:
        with nowhere:
            return CausalLM(config, dtype=torch.float32, device=nowhere).weights()
    except RuntimeError as error:
        raise CheckpointError(f"config.json asks for weights that can not be: {error}") from None


def _matched(stored: Mapping[str, StoredTensor], config: ModelConfig) -> dict[str, StoredTensor]:
    """The stored tensors that fill the weights: each exactly once and of the right shape."""
    weights = _described(config, len(stored))
    missing = [name for name in weights if name not in stored]
    if missing:
        raise CheckpointError(f"the checkpoint lacks {_listed(missing)}")
    unexpected = [
        name
        for name in stored
        if name not in weights
        and not name.endswith(_HARMLESS)
        and not (config.tie_word_embeddings and name == "lm_head.weight")
    ]
    if unexpected:
        raise CheckpointError(
            f"the checkpoint holds {_listed(unexpected)}, which a model of this config.json has not"
        )
    wanted = {name: tensor for name, tensor in stored.items() if name in weights}
    for name, tensor in wanted.items():
        shape = tuple(weights[name].shape)
        if tensor.shape != shape:
            raise CheckpointError(
                f"tensor {name!r} in {tensor.shard.name} has shape {tensor.shape}, "
                f"config.json asks for {shape}"
            )
    return wanted


def _listed(names: list[str]) -> str:
    shown = ", ".join(names[:_NAMES_SHOWN])
    more = len(names) - _NAMES_SHOWN
    return f"{counted(len(names), 'tensor')}: {shown}" + (f" and {more} more" if more > 0 else "")
