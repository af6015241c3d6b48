"""Adapters in PEFT's format: a folder's tensors, checked against a model, as what they add to its
products.
"""

from __future__ import annotations

import os
import re
from collections.abc import Container, Iterator, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor

from radixlm.core.errors import CheckpointError, UnsupportedModelError
from radixlm.formats.files import MOST_BYTES, read_bytes
from radixlm.formats.text_part import is_of_text, text_start
from radixlm.layers.linear import Linear
from radixlm.layers.lora import Addition, Additions
from radixlm.models.adapter_config import CONFIG, AdapterConfig
from radixlm.models.decoder import EMBEDDING, HEAD, CausalLM
from radixlm.models.folds import Fold, folds_of
from radixlm.products.low_rank import LowRank

WEIGHTS = "adapter_model.safetensors"
_PICKLE = "adapter_model.bin"
_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
_START = "model."
_SHOWN = 5


class AdapterWeights(NamedTuple):
    """digest: of all that its numbers depend on, but for the model."""

    digest: str
    additions: Additions


class _Place(NamedTuple):
    """The place of a module's outputs: those of a product from `start` on."""

    linear: Linear
    start: int
    size: int


def load_adapter(folder: Path, model: CausalLM) -> AdapterWeights:
    """Read an adapter for a model. The products' own weights may be packed or quantized.

    Memory: twice the file. Raises CheckpointError that names file or tensor, what is there and what
    is wanted, and UnsupportedModelError for what is not served.
    """
    said = _content(folder, CONFIG)
    config = AdapterConfig.of(folder / CONFIG, said)
    content = _content(folder, WEIGHTS)
    digest = blake2b(said, digest_size=8)
    digest.update(content)
    found = _by_module(folder / WEIGHTS, _tensors(folder / WEIGHTS, content))
    start = text_start(found)
    if start != _START:
        found = {name: its for name, its in found.items() if is_of_text(name)}
    places = {_respelled(name, start): place for name, place in _places(model)}
    try:
        sizes = config.products(list(places))
    except UnsupportedModelError as error:
        raise UnsupportedModelError(f"{folder / CONFIG}: {error}") from None
    _check_modules(folder, sizes, found, places, model, start)
    folds = folds_of(model.config)
    parts: dict[Linear, list[LowRank]] = {}
    for name, place in places.items():
        if name not in found:
            continue
        a, b = _checked(folder / WEIGHTS, name, found[name], place, sizes[name].rank)
        b = b.float() * sizes[name].scale
        fold = folds.get(f"{_START}{name.removeprefix(start)}.weight", Fold())
        if isinstance(folded := fold(b), Tensor):
            b = folded
        kind = model.embedding.weight
        low = LowRank(place.start, a.to(kind), b.to(kind))
        parts.setdefault(place.linear, []).append(low)
    additions = {linear: Addition(linear, its) for linear, its in parts.items()}
    return AdapterWeights(digest.hexdigest(), additions)


def _respelled(name: str, start: str) -> str:
    """A module's name as an adapter has it, whose model may be of more than text."""
    return f"{start}{name.removeprefix(_START)}" if name.startswith(_START) else name


def _content(folder: Path, name: str) -> bytes:
    path = folder / name
    try:
        return read_bytes(path, None if name == WEIGHTS else MOST_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        if name == WEIGHTS and os.path.isfile(folder / _PICKLE):
            raise CheckpointError(
                f"{folder} has only pickled weights ({_PICKLE}), which can run code when loaded "
                "and are refused; `save_pretrained` of peft writes safetensors"
            ) from None
        raise CheckpointError(f"{folder} has no {name}; is it a PEFT adapter's folder?") from None
    except MemoryError:
        raise CheckpointError(f"{path} is larger than the memory that is left") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from None


def _tensors(path: Path, content: bytes) -> Mapping[str, Tensor]:
    try:
        return safetensors.torch.load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path} is truncated or not a safetensors file ({error}); fetch it again"
        ) from None


def _by_module(path: Path, tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """A and B of each module by its name in the model."""
    found: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        named = _NAME.fullmatch(name)
        if named is None:
            raise UnsupportedModelError(
                f"{path}: tensor {name!r:.200} is no part of a product's adapter; those are called "
                "base_model.model.<module>.lora_A.weight and .lora_B.weight"
            )
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise CheckpointError(f"{path}: tensor {name!r} is of type {kind}; wanted: floats")
        found.setdefault(named[1], {})[named[2]] = tensor
    if not found:
        raise CheckpointError(f"{path} holds no tensors")
    return found


def _places(model: CausalLM) -> Iterator[tuple[str, _Place]]:
    """The places by the names of modules that may be adapted."""
    for prefix, linear in model.adaptable():
        start = 0
        for part, size in linear.parts.items():
            yield f"{prefix}{part}", _Place(linear, start, size)
            start += size


def _check_modules(
    folder: Path,
    targeted: Container[str],
    found: Mapping[str, Mapping[str, Tensor]],
    places: Mapping[str, _Place],
    model: CausalLM,
    start: str,
) -> None:
    """Raises for tensors of other modules, and for modules without tensors."""
    others = {f"{prefix}{part}" for prefix, linear in model.linears() for part in linear.parts}
    others = {_respelled(name, start) for name in (*others, EMBEDDING, HEAD)} - places.keys()
    path = folder / WEIGHTS
    for name in found:
        if name in others or ".experts" in name:
            raise UnsupportedModelError(
                f"{path} adapts {name!r:.200}, which is not supported: only products of attention "
                "and of MLPs without experts are"
            )
        if name not in places:
            raise CheckpointError(
                f"{path} adapts {name!r:.200}, which the model has not; it has "
                f"{', '.join(list(places)[:_SHOWN])}, ..."
            )
        if name not in targeted:
            raise CheckpointError(
                f"{path} adapts {name!r}, which target_modules of {CONFIG} leaves out"
            )
    wanted = [name for name in places if name in targeted and name not in found]
    if wanted:
        raise CheckpointError(f"{path} lacks {wanted[0]!r}, which target_modules of {CONFIG} names")


def _checked(
    path: Path, name: str, given: Mapping[str, Tensor], place: _Place, rank: int
) -> tuple[Tensor, Tensor]:
    shapes = {"A": (rank, place.linear.inputs), "B": (place.size, rank)}
    for side, shape in shapes.items():
        full = f"base_model.model.{name}.lora_{side}.weight"
        if side not in given:
            raise CheckpointError(f"{path} lacks the tensor {full!r}")
        if tuple(given[side].shape) != shape:
            raise CheckpointError(
                f"{path}: tensor {full!r} has shape {tuple(given[side].shape)}, wanted {shape}: "
                f"rank {rank} by {CONFIG}, and the sizes of the model"
            )
    return given["A"], given["B"]
