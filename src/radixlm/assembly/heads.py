"""The draft head that a config asks for, beside its model."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple, TypedDict

import torch

from radixlm.core.batch import MOST_SIBLINGS
from radixlm.core.config import HEADS, EngineConfig
from radixlm.core.errors import ConfigError
from radixlm.formats.model_files import ModelFile, ModelFiles
from radixlm.formats.weight_files import WeightFile, stamped, weight_files
from radixlm.layers.linear import Quantize
from radixlm.memory.pools import HeadRows, bytes_per_token
from radixlm.models.decoder import CausalLM
from radixlm.models.draft_head import DraftHead
from radixlm.models.eagle3 import load_eagle3
from radixlm.models.model_config import ModelConfig
from radixlm.models.mtp import MtpWeights
from radixlm.products.gemm_choice import Choose
from radixlm.runner.model_runner import Model
from radixlm.text.model_folder import DEMO_HEAD, DEMO_MODEL


def check_head(config: EngineConfig, files: ModelFiles, model: ModelConfig) -> None:
    """Raises ConfigError, ModelError for what has no head, or does not go with one, before data of
    weights is read.
    """
    name = config.speculative_algorithm
    if name not in HEADS:
        return
    flag = f"--speculative-algorithm {name}"
    if config.tp_size > 1:
        raise ConfigError(f"{flag} does not go with --tp-size {config.tp_size}")
    if name == "mtp":
        _check_mtp(flag, files, model)
        return
    if model.traits.latents is not None:
        raise ConfigError(f"{flag} does not know the latents of {model.model_type}")
    if config.speculative_draft_model_path is None and files.path.resolve() != DEMO_MODEL:
        raise ConfigError(f"{flag} needs a head: --speculative-draft-model-path")


def _check_mtp(flag: str, files: ModelFiles, model: ModelConfig) -> None:
    if isinstance(files, ModelFile):
        raise ConfigError(f"{flag} is for folders; {str(files.path)!r} is a GGUF file")
    if model.traits.indexer is not None:
        raise ConfigError(f"{flag} does not know the index of {model.model_type}")
    MtpWeights(files.path, model)


class ProductPacking(TypedDict):
    """How products are packed, see `load_model`."""

    choose: Choose
    quantize: Quantize | None


class LoadedHead(NamedTuple):
    """head: None: there is none. rows: what it keeps, see `KVPool`. weights: the files that it was
    loaded from.
    """

    head: DraftHead | None = None
    rows: HeadRows | None = None
    weights: tuple[WeightFile, ...] = ()

    def token_bytes(self, config: EngineConfig, dtype: torch.dtype) -> int:
        """Bytes of a token of it."""
        if self.rows is None or self.head is None:
            return 0
        shape, coded = self.rows.shape, config.kv_cache_dtype == "int8"
        state = shape.index_dim * dtype.itemsize  # in numbers, whatever keys are kept in
        sizes, latent = (1, shape.n_kv_heads, shape.head_dim), bool(self.head.expansions)
        return state + bytes_per_token(*sizes, dtype, coded=coded, latent=latent)


def load_head(
    config: EngineConfig,
    files: ModelFiles,
    model: Model,
    dtype: torch.dtype,
    device: torch.device,
    packing: ProductPacking,
) -> LoadedHead:
    """packing: as the model's. Raises ConfigError, ModelError."""
    if config.speculative_algorithm not in HEADS:
        return LoadedHead()
    if not isinstance(model, CausalLM):
        raise ConfigError(
            f"--speculative-algorithm {config.speculative_algorithm} does not know models that "
            "transformers computes"
        )
    head: DraftHead
    if config.speculative_algorithm == "mtp":
        found = MtpWeights(files.path, model.config)
        head, paths = found.load(model, dtype=dtype, device=device, **packing), found.files
    else:
        given = config.speculative_draft_model_path
        folder = DEMO_HEAD if given is None else Path(given)
        head = load_eagle3(folder, model, dtype=dtype, device=device, choose=packing["choose"])
        paths = weight_files(folder)
    rows = config.request_rows + MOST_SIBLINGS
    scratch = rows * config.speculative_num_draft_tokens
    return LoadedHead(head, HeadRows(head.shape, scratch), tuple(stamped(paths)))
