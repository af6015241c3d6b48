"""Looks at a model's files as if it were to be loaded, and says what would be served and the memory
that it takes: heads are read, no weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import torch

from radixlm.assembly.chosen import chosen, reached_of
from radixlm.assembly.loading import checkpoint_of, texts_of
from radixlm.assembly.model_impl import by_transformers, unloaded
from radixlm.assembly.windows import Windows
from radixlm.core.config import EngineConfig
from radixlm.formats.model_files import ModelFile, ModelFiles
from radixlm.formats.model_types import FOREIGN, NATIVE
from radixlm.models.decoder import EMBEDDING, HEAD
from radixlm.models.folds import Folded
from radixlm.models.gguf_blocks import LOOKED_UP, bytes_per_number
from radixlm.models.gguf_checkpoint import GGUFCheckpoint
from radixlm.models.loader import matched
from radixlm.models.safetensors_files import FLOATS, surveyed
from radixlm.text.chat_template import ChatTemplate

# Of a folder and of a GGUF file.
_EMBEDDINGS = (f"{EMBEDDING}.weight", "token_embd.weight")


class Appraisal(NamedTuple):
    """The facts of a model before it is loaded.

    computed_by: `NATIVE` or `FOREIGN`. stored: bytes of weights by their types in the files, the
    most first. weight_bytes: about those in memory, in floats as `dtype`, quantized ones as codes
    on a CPU. kv_bytes: of 1,000 tokens. state_bytes: of a state; 0: there are none.
    unused: names of tensors that are not read.
    """

    name: str
    model_type: str
    computed_by: str
    file_format: str
    stored: dict[str, int]
    dtype: str
    context_length: int
    weight_bytes: int
    kv_bytes: int
    state_bytes: int
    unused: list[str]


class _Stored(NamedTuple):
    """A tensor in the files. each: bytes that a number takes in a product on a CPU."""

    kind: str
    nbytes: int
    numbers: int
    each: float


def appraise(config: EngineConfig) -> tuple[Appraisal, ChatTemplate | None]:
    """Appraise the model that would be loaded, and find its chat template. Refuses what loading it
    would, as far as heads tell. Raises ConfigError, ModelError.
    """
    files, model, device, dtype = chosen(config)
    foreign = by_transformers(config, files)
    unused: list[str] = []
    shapes: Mapping[str, tuple[int, ...]] = {}
    if foreign:
        model = unloaded(files)
    else:
        checkpoint = checkpoint_of(files, model)
        shapes = checkpoint.shapes
        matched(Folded(checkpoint, model), model)
        unused = checkpoint.unused if isinstance(checkpoint, GGUFCheckpoint) else []
    tensors = dict(_tensors(files, unused, dtype))
    stored: Counter[str] = Counter()
    for tensor in tensors.values():
        stored[tensor.kind] += tensor.nbytes
    weight_bytes = _on_a_cpu(tensors, dtype)
    if device.type != "cpu" and shapes:
        weight_bytes = dtype.itemsize * sum(map(math.prod, shapes.values()))
    elif model.tie_word_embeddings and f"{HEAD}.weight" not in shapes:
        # A copy of what is no codes is packed, see `Linear.pack`.
        copied = (its.kind not in LOOKED_UP for name, its in tensors.items() if name in _EMBEDDINGS)
        weight_bytes += next(copied, True) * dtype.itemsize * model.vocab_size * model.hidden_size
    reached = reached_of(config, model)
    _, template = texts_of(config, files)
    found = Appraisal(
        name=files.name,
        model_type=model.model_type,
        computed_by=FOREIGN if foreign else NATIVE,
        file_format="gguf" if isinstance(files, ModelFile) else "safetensors",
        stored=dict(stored.most_common()),
        dtype=str(dtype).removeprefix("torch."),
        context_length=reached.context_length,
        weight_bytes=weight_bytes,
        kv_bytes=int(1000 * Windows.of(config, reached).token_bytes(config, reached, dtype)),
        state_bytes=sum(shape.nbytes(dtype) for shape in reached.state_shapes),
        unused=unused,
    )
    return found, template


def _tensors(
    files: ModelFiles, unused: list[str], dtype: torch.dtype
) -> Iterator[tuple[str, _Stored]]:
    """The tensors that are read, by name. unused: others are added."""
    if isinstance(files, ModelFile):
        for name, tensor in files.gguf.tensors.items():
            if name not in unused:
                each = bytes_per_number(tensor.type, dtype)
                numbers = math.prod(tensor.shape)
                yield name, _Stored(tensor.type.name, tensor.nbytes, numbers, each)
        return
    found, others = surveyed(files.path)
    unused += others
    for name, its in found.items():
        numbers = math.prod(its.shape)
        each = dtype.itemsize if its.dtype in FLOATS else its.nbytes / max(numbers, 1)
        yield name, _Stored(its.dtype, its.nbytes, numbers, each)


def _on_a_cpu(tensors: Mapping[str, _Stored], dtype: torch.dtype) -> int:
    """Bytes of all tensors: rows that are looked up are codes of certain types, or floats."""
    in_floats = {
        name
        for name, its in tensors.items()
        if name.endswith(_EMBEDDINGS) and its.kind not in LOOKED_UP
    }
    return sum(
        int(its.numbers * (dtype.itemsize if name in in_floats else its.each))
        for name, its in tensors.items()
    )
