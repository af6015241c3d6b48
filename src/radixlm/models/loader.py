"""Reads a checkpoint: its safetensors files, what their headers say, its weights into a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from tqdm import tqdm

from radixlm.core.errors import CheckpointError, counted
from radixlm.core.files import read_json_object
from radixlm.models.decoder import CausalLM
from radixlm.models.model_config import ModelConfig

_SINGLE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt")
_DTYPES = ("F32", "BF16", "F16", "F64")


_HARMLESS = ".rotary_emb.inv_freq"  # old checkpoints store what the config says anyway
_NAMES_SHOWN = 5


class StoredTensor(NamedTuple):
    """Where a tensor lies, and its shape in elements."""

    shard: Path
    shape: tuple[int, ...]


def survey(folder: Path) -> dict[str, StoredTensor]:
    """Every tensor of the checkpoint by name, in the order of the files.

    Raises CheckpointError for missing, unreadable or truncated files, files outside of the folder,
    tensors that are stored twice, and tensors of integers or of quantized floats.
    """
    found: dict[str, StoredTensor] = {}
    for shard in _shards(folder):
        with open_shard(shard) as file:
            for name in file.keys():  # noqa: SIM118 - a handle, not a dict
                if name in found:
                    other = found[name].shard.name
                    raise CheckpointError(f"tensor {name!r} is in {other} and in {shard.name}")
                header = file.get_slice(name)
                if header.get_dtype() not in _DTYPES:
                    raise CheckpointError(
                        f"tensor {name!r} in {shard.name} is of type {header.get_dtype()}; "
                        f"supported: {', '.join(_DTYPES)}"
                    )
                found[name] = StoredTensor(shard, tuple(header.get_shape()))
    return found


@contextmanager
def open_shard(path: Path) -> Iterator[Any]:
    """A safetensors handle; what goes wrong while it is open is a CheckpointError."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path} is truncated or not a safetensors file ({error}); fetch it again"
        ) from error


def _shards(folder: Path) -> list[Path]:
    if (folder / _SINGLE).is_file():
        return [folder / _SINGLE]
    if (folder / _INDEX).is_file():
        return _indexed_shards(folder)
    pickles = [path.name for path in sorted(folder.glob("*")) if path.suffix in _PICKLES]
    if pickles:
        raise CheckpointError(
            f"{folder} has only pickled weights ({pickles[0]}), which can run code when loaded and "
            "are refused; convert them on a machine you can spare: AutoModelForCausalLM"
            f".from_pretrained({str(folder)!r}).save_pretrained(...) of transformers writes "
            "safetensors"
        )
    raise CheckpointError(f"{folder} has neither {_SINGLE} nor {_INDEX}")


def _indexed_shards(folder: Path) -> list[Path]:
    weight_map = read_json_object(folder / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{folder / _INDEX} has no weight_map")
    shards = []
    for name in sorted({str(name) for name in weight_map.values()}):
        if _leaves_the_folder(name):
            raise CheckpointError(f"{folder / _INDEX} points outside of its folder: {name!r}")
        if not (folder / name).is_file():
            raise CheckpointError(f"{folder} lacks the shard {name}, which {_INDEX} names")
        shards.append(folder / name)
    return shards


def _leaves_the_folder(name: str) -> bool:
    """By its spelling only: in the hub's cache the files themselves are links to elsewhere."""
    paths = (PurePosixPath(name), PureWindowsPath(name))
    return any(path.anchor or ".." in path.parts for path in paths)


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
