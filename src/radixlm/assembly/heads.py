"""The draft head that a config asks for, beside its model."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError
from radixlm.formats.model_files import ModelFiles
from radixlm.formats.weight_files import WeightFile, stamped, weight_files
from radixlm.memory.pools import HeadRows, bytes_per_token
from radixlm.models.decoder import CausalLM
from radixlm.models.draft_head import DraftHead
from radixlm.models.eagle3 import load_eagle3
from radixlm.models.model_config import ModelConfig
from radixlm.products.gemm_choice import Choose
from radixlm.runner.model_runner import Model
from radixlm.text.model_folder import DEMO_HEAD, DEMO_MODEL

HEADS = ("eagle3",)


def check_head(config: EngineConfig, files: ModelFiles, model: ModelConfig) -> None:
    """Raises ConfigError for what has no head, or does not go with one, before it is loaded."""
    name = config.speculative_algorithm
    if name not in HEADS:
        return
    flag = f"--speculative-algorithm {name}"
    if model.state_shapes:
        raise ConfigError(
            f"{flag} does not go with this model: its layers have states, which can not be taken "
            "back where a draft was wrong"
        )
    if config.tp_size > 1:
        raise ConfigError(f"{flag} does not go with --tp-size {config.tp_size}")
    if model.traits.latents is not None:
        raise ConfigError(f"{flag} does not know the latents of {model.model_type}")
    if config.speculative_draft_model_path is None and files.path.resolve() != DEMO_MODEL:
        raise ConfigError(f"{flag} needs a head: --speculative-draft-model-path")


class LoadedHead(NamedTuple):
    """head: None: there is none. rows: what it keeps, see `KVPool`. weights: the files that it was
    loaded from.
    """

    head: DraftHead | None = None
    rows: HeadRows | None = None
    weights: tuple[WeightFile, ...] = ()

    def token_bytes(self, config: EngineConfig, dtype: torch.dtype) -> int:
        """Bytes of a token of it."""
        if self.rows is None:
            return 0
        shape, coded = self.rows.shape, config.kv_cache_dtype == "int8"
        state = shape.index_dim * dtype.itemsize  # in numbers, whatever keys are kept in
        return state + bytes_per_token(1, shape.n_kv_heads, shape.head_dim, dtype, coded=coded)


def load_head(
    config: EngineConfig,
    model: Model,
    dtype: torch.dtype,
    device: torch.device,
    choose: Choose,
) -> LoadedHead:
    """Raises ConfigError, ModelError."""
    if config.speculative_algorithm not in HEADS:
        return LoadedHead()
    if not isinstance(model, CausalLM):
        raise ConfigError(
            f"--speculative-algorithm {config.speculative_algorithm} does not know models that "
            "transformers computes"
        )
    given = config.speculative_draft_model_path
    folder = DEMO_HEAD if given is None else Path(given)
    head = load_eagle3(folder, model, dtype=dtype, device=device, choose=choose)
    rows = min(config.max_running_requests, config.chunked_prefill_size)
    scratch = rows * config.speculative_num_draft_tokens
    return LoadedHead(head, HeadRows(head.shape, scratch), tuple(stamped(weight_files(folder))))
