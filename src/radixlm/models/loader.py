"""Fills a model from a checkpoint, one tensor at a time, and lays it out for the machine."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor
from tqdm import tqdm

from radixlm.core.errors import CheckpointError
from radixlm.layers.linear import Linear, Quantize
from radixlm.layers.split import Split
from radixlm.models.decoder import EMBEDDING, HEAD, CausalLM, Fillable, described
from radixlm.models.folds import Folded
from radixlm.models.model_config import ModelConfig
from radixlm.models.parts import PartCheckpoint, part_of
from radixlm.models.safetensors_files import Checkpoint, CutCheckpoint, listed
from radixlm.products.gemm_choice import Choose
from radixlm.products.quantized import QuantizedWeight
from radixlm.products.quantized_products import QuantizedProduct
from radixlm.products.quantized_rows import has_rows, quantized_rows, rows_of

_HEAD, _EMBEDDING = f"{HEAD}.weight", f"{EMBEDDING}.weight"


_Filled = TypeVar("_Filled", bound=Fillable)


def load_model(
    checkpoint: CutCheckpoint,
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    choose: Choose | None = None,
    quantize: Quantize | None = None,
    progress: bool = True,
    split: Split | None = None,
) -> CausalLM:
    """Build the model that `config` describes and fill it from a checkpoint.

    dtype: the type on the device; stored tensors of another one are converted on the way.
    choose: pack each product as soon as its weights are there; None: no product.
    quantize: what products' weights in floats become when they are packed, if they are to.
    progress: show a bar, in bytes, on stderr when that is a terminal.
    split: which part of it to build; None: all. Of weights in floats no more than that is read.
    Memory: the weights, those of one product and one tensor. All names and shapes are checked
    before any data is read, but of biases that the model has not, which may be zeros, and of the
    head of a tied model, which is used where it is not the embedding. Raises
    CheckpointError that names the tensor or the file; ConfigError where a part would cut a scale.
    """
    config = _with_own_head(checkpoint, config)
    folded = Folded(checkpoint, config)
    wanted = matched(folded, config)
    if split is not None:
        config, whole = part_of(config, split.rank, split.size), config
        folded = Folded(PartCheckpoint(checkpoint, whole, split), config)
        wanted = matched(folded, config)
    # On a CPU memory is not there before it is written.
    in_turn = choose is not None and checkpoint.is_quantized and device.type != "cpu"
    make = partial(CausalLM, config, dtype=dtype, device=device, split=split, in_turn=in_turn)
    return filled(make, folded, wanted, choose, quantize, progress=progress)


def filled(
    make: Callable[[], _Filled],
    checkpoint: Checkpoint,
    names: Sequence[str],
    choose: Choose | None,
    quantize: Quantize | None,
    *,
    progress: bool,
) -> _Filled:
    """Make what these weights of a checkpoint are for, and fill it, see `load_model`."""
    try:
        model = make()
    except (RuntimeError, MemoryError) as error:
        raise CheckpointError(f"no memory for the weights of {checkpoint.where}: {error}") from None
    filling = _Filling(model, choose, quantize)
    # disable=None: no bar where stderr is no terminal, so that logs stay readable.
    off = None if progress else True
    with tqdm(
        total=filling.nbytes, desc="loading weights", unit="B", unit_scale=True, disable=off
    ) as bar:
        # The largest first: what packing takes beside them is free again before the others come.
        for name in sorted(names, key=lambda name: name not in (_HEAD, _EMBEDDING)):
            bar.update(filling.put(name, checkpoint.read(name)))
    filling.close()
    return model


class _Filling:
    """A model whose weights come in: products are packed when they have all of theirs."""

    def __init__(self, model: Fillable, choose: Choose | None, quantize: Quantize | None) -> None:
        self._model, self._choose, self._quantize = model, choose, quantize
        self._weights, self._tables = model.weights(), dict(model.tables())
        self.nbytes = sum(weight.nbytes for weight in self._weights.values())
        # By weight, the product that it belongs to, and what is still to come for that.
        self._owners: dict[str, tuple[Linear, set[str]]] = {}
        self._own_names: dict[str, str] = {}
        for prefix, linear in model.linears():
            own = {f"{prefix}{name}": name for name, _ in linear.named_weights()}
            self._own_names |= own
            self._owners |= dict.fromkeys(own, (linear, {*own}))

    def put(self, name: str, weight: Tensor | QuantizedWeight) -> int:
        """Returns the bytes that the weight has where nothing is quantized."""
        memory, head, table = self._weights.pop(name), self._model.head, self._tables.get(name)
        is_head = table is not None and head is not None and memory is head.weight
        tied = head if is_head else None
        linear, missing = self._owners.get(name, (tied, {name}))
        takes_codes = linear is not None and self._choose is not None and linear.takes_codes
        looked_up = table if self._has_rows(weight, memory) else None
        if isinstance(weight, Tensor):
            self._room(name, memory).copy_(weight)
        else:
            if looked_up is None and (table is not None or not takes_codes):
                weight.fill(self._room(name, memory))
            elif looked_up is not None and tied is None:
                looked_up.look_up(quantized_rows(weight, memory.dtype))
            if linear is not None and takes_codes:
                own = name.removesuffix(".weight").rpartition(".")[2]
                linear.put(own if tied is None else HEAD, weight)
        nbytes = memory.nbytes
        del memory, weight
        missing.discard(name)
        if linear is not None and self._choose and not missing:
            linear.pack(self._choose, self._quantize)
            _give_back()
        product = None if tied is None else tied.product
        if looked_up is not None and isinstance(product, QuantizedProduct):
            looked_up.look_up(rows_of(product))
        return nbytes

    def _room(self, name: str, memory: Tensor) -> Tensor:
        """The memory of a weight, which is taken now where it has none."""
        if not memory.is_meta:
            return memory
        return self._owners[name][0].make_room()[self._own_names[name]]

    def _has_rows(self, weight: Tensor | QuantizedWeight, memory: Tensor) -> bool:
        """Whether rows of a weight can be looked up among its codes, instead of in memory."""
        if isinstance(weight, Tensor) or self._choose is None:
            return False
        return memory.device.type == "cpu" and has_rows(weight)

    def close(self) -> None:
        """All products are packed: lay out what goes with them."""
        if self._choose:
            self._model.pack(self._choose, self._quantize)


def _give_back() -> None:
    """Freed memory to the system: malloc keeps it, in holes that the next weights do not fill."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _with_own_head(checkpoint: Checkpoint, config: ModelConfig) -> ModelConfig:
    """The model with its head as the files have it, whatever the config says of it."""
    if not (config.tie_word_embeddings and {_HEAD, _EMBEDDING} <= checkpoint.shapes.keys()):
        return config
    head, embedding = checkpoint.read(_HEAD), checkpoint.read(_EMBEDDING)
    if isinstance(head, Tensor) and isinstance(embedding, Tensor) and torch.equal(head, embedding):
        return config
    return replace(config, tie_word_embeddings=False)


def matched(checkpoint: Checkpoint, config: ModelConfig) -> list[str]:
    """The stored tensors that fill the weights: each exactly once and of the right shape."""
    stored = checkpoint.shapes
    tied = config.tie_word_embeddings
    names = [name for name in stored if name != _HEAD or not tied]
    return matching(checkpoint, names, described(config, len(stored)))


def matching(
    checkpoint: Checkpoint, names: Sequence[str], weights: Mapping[str, Tensor]
) -> list[str]:
    """List which of these stored tensors fill the weights, as `matched`."""
    stored = {name: checkpoint.shapes[name] for name in names}
    missing = [name for name in weights if name not in stored]
    if missing:
        raise CheckpointError(f"the checkpoint lacks {listed(missing)}")
    unexpected = [
        name
        for name in stored
        if name not in weights and not _adds_nothing(checkpoint, name, weights)
    ]
    if unexpected:
        raise CheckpointError(
            f"the checkpoint holds {listed(unexpected)}, which a model of this config has not"
        )
    wanted = [name for name in stored if name in weights]
    for name in wanted:
        shape = tuple(weights[name].shape)
        if stored[name] != shape:
            raise CheckpointError(
                f"tensor {name!r} has shape {stored[name]}, the model's config asks for {shape}"
            )
    return wanted


def _adds_nothing(checkpoint: Checkpoint, name: str, weights: Mapping[str, Tensor]) -> bool:
    """Whether it is a bias of zeros: old GPTQ checkpoints have one for every product."""
    weight = weights.get(f"{name.removesuffix('.bias')}.weight")
    if not name.endswith(".bias") or weight is None:
        return False
    if checkpoint.shapes[name] != tuple(weight.shape[:1]):
        return False
    bias = checkpoint.read(name)
    return isinstance(bias, Tensor) and not bias.any()
