"""Looks at a model's files as if it were to be loaded, and says what would be served and the memory
that it takes: heads are read, no weights.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import torch

from radixlm.assembly.chosen import chosen, reached_of
from radixlm.assembly.loading import checkpoint_of, texts_of
from radixlm.assembly.model_impl import by_transformers, unloaded
from radixlm.assembly.windows import Windows
from radixlm.core.config import EngineConfig
from radixlm.formats.model_files import ModelFile, ModelFiles
from radixlm.formats.model_types import FOREIGN, NATIVE
from radixlm.models.folds import Folded
from radixlm.models.gguf_checkpoint import GGUFCheckpoint
from radixlm.models.loader import matched
from radixlm.models.safetensors_files import surveyed
from radixlm.text.chat_template import ChatTemplate

_FLOATS = frozenset({"F64", "F32", "BF16", "F16"})


class Appraisal(NamedTuple):
    """The facts of a model before it is loaded.

    computed_by: `NATIVE` or `FOREIGN`. stored: bytes of weights by their types in the files, the
    most first. weight_bytes: in memory, those in floats as `dtype`, quantized ones as they are
    stored. kv_bytes: of 1,000 tokens. state_bytes: of a state; 0: there are none. unused: names of
    tensors that are not read.
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


def appraise(config: EngineConfig) -> tuple[Appraisal, ChatTemplate | None]:
    """Appraise the model that would be loaded, and find its chat template. Refuses what loading it
    would, as far as heads tell. Raises ConfigError, ModelError.
    """
    files, model, _, dtype = chosen(config)
    foreign = by_transformers(config, files)
    unused: list[str] = []
    if foreign:
        model = unloaded(files)
    else:
        checkpoint = checkpoint_of(files, model)
        matched(Folded(checkpoint, model), model)
        unused = checkpoint.unused if isinstance(checkpoint, GGUFCheckpoint) else []
    sizes = list(_sizes(files, unused))
    stored: Counter[str] = Counter()
    for kind, _, nbytes in sizes:
        stored[kind] += nbytes
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
        weight_bytes=_in_memory(sizes, dtype),
        kv_bytes=int(1000 * Windows.of(config, reached).token_bytes(config, reached, dtype)),
        state_bytes=sum(shape.nbytes(dtype) for shape in reached.state_shapes),
        unused=unused,
    )
    return found, template


def _sizes(files: ModelFiles, unused: list[str]) -> Iterator[tuple[str, int, int]]:
    """The type, numbers and bytes of each tensor that is read. unused: others are added."""
    if isinstance(files, ModelFile):
        for name, tensor in files.gguf.tensors.items():
            if name not in unused:
                yield tensor.type.name, math.prod(tensor.shape), tensor.nbytes
        return
    found, others = surveyed(files.path)
    unused += others
    for stored in found.values():
        yield stored.dtype, math.prod(stored.shape), stored.nbytes


def _in_memory(sizes: Iterable[tuple[str, int, int]], dtype: torch.dtype) -> int:
    return sum(
        numbers * dtype.itemsize if kind in _FLOATS else nbytes for kind, numbers, nbytes in sizes
    )
