"""The facts of what computed an engine's keys and values, as the identity of its store."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from importlib.metadata import version
from typing import NamedTuple

import torch
from tqdm import tqdm

from radixlm.assembly.model_impl import by_transformers
from radixlm.core.config import EngineConfig
from radixlm.formats.model_files import ModelFile, ModelFiles
from radixlm.formats.weight_files import WeightFile
from radixlm.memory.packing import PoolBlocks
from radixlm.memory.pools import KVPool
from radixlm.memory.store_identity import WINDOW_BYTES, Fact, StoreIdentity, digest_of
from radixlm.memory.weight_sums import WeightSums
from radixlm.models.model_config import ModelConfig

_logger = logging.getLogger("radixlm.assembly")

# What a model's config has that no key or value depends on: how many positions there are. What is
# turned in another way in a longer context is in `rope`.
_WITHOUT_EFFECT = "context_length"


class EngineFacts(NamedTuple):
    """The model and settings that an engine computes with.

    weights: the files that were loaded, as they were before. model: as it was loaded. threads: that
    compute. head: the files of a draft head.
    """

    files: ModelFiles
    weights: Sequence[WeightFile]
    model: ModelConfig
    threads: int
    head: Sequence[WeightFile] = ()

    def identity(
        self,
        config: EngineConfig,
        pool: KVPool,
        blocks: PoolBlocks,
        sums: WeightSums,
        *,
        progress: bool,
    ) -> StoreIdentity:
        """blocks: of the pool, as they are stored. Raises CheckpointError for weights that were
        written since they were loaded.
        """
        found = _sums(self.weights, sums, progress=progress)
        facts: dict[str, Fact] = {
            "weights": digest_of(found),
            "config": "" if isinstance(self.files, ModelFile) else digest_of(self.files.config()),
            "shape": digest_of(shape_of(self.model)),
            "dtype": str(pool.dtype),
            "kv_cache_dtype": str(pool.keys[0].dtype),
            "quantization": config.quantization,
            "page_size": config.page_size,
            # Bits are promised for one machine with as many threads.
            "deterministic": self.threads if config.deterministic else 0,
        }
        if blocks.window_bytes:
            facts[WINDOW_BYTES] = blocks.window_bytes
        if blocks.state_bytes:
            # In blocks that go on from those of tokens, see `packing`.
            facts["state_bytes"] = blocks.state_bytes
        if self.head:
            # Its rows lie in the same blocks.
            facts["draft_head"] = digest_of(_sums(self.head, sums, progress=progress))
        if by_transformers(config, self.files):
            # Heads that it computes have their numbers in another order than ours.
            facts["model_impl"] = f"transformers {version('transformers')}"
        return StoreIdentity(facts, self.files.name)


def shape_of(model: ModelConfig) -> object:
    """Every field of a config, and of what is in it, for `digest_of`."""
    return {
        field.name: _plain(getattr(model, field.name))
        for field in fields(model)
        if field.name != _WITHOUT_EFFECT
    }


def _plain(value: object) -> object:
    """A value in words of JSON. Raises TypeError for a kind of value that nobody thought of: it
    would be left out.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, frozenset):
        return sorted(value)
    if is_dataclass(value):
        named = {field.name: getattr(value, field.name) for field in fields(value)}
    elif isinstance(value, tuple) and hasattr(value, "_asdict"):
        named = value._asdict()
    elif isinstance(value, tuple):
        return [_plain(each) for each in value]
    else:
        raise TypeError(f"{value!r:.200} has no place in an identity")
    return [type(value).__name__, {name: _plain(each) for name, each in named.items()}]


def _sums(
    weights: Sequence[WeightFile], sums: WeightSums, *, progress: bool
) -> list[tuple[int, str]]:
    """The size and the sum of each file."""
    total = sums.unknown(weights)
    if total:
        size, unit = (total / 1e9, "GB") if total >= 1e9 else (total / 1e6, "MB")
        text = "reading %.2f %s of weights once, to find this model's blocks on disk"
        _logger.info(text, size, unit)
    # disable=None: no bar where stderr is no terminal, so that logs stay readable.
    off = None if progress and total else True
    with tqdm(total=total, desc="checking weights", unit="B", unit_scale=True, disable=off) as bar:
        found = sums.of(weights, bar.update)
    return [(file.stamp.nbytes, its) for file, its in zip(weights, found, strict=True)]
