"""The code that computes a model: ours, where its architecture has a file here, or
transformers'.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch

from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError, UnsupportedModelError
from radixlm.formats.model_files import ModelFile, ModelFiles
from radixlm.formats.served import INSTALL
from radixlm.models.families import ARCHITECTURES
from radixlm.models.model_config import ModelConfig, load_config
from radixlm.models.transformers_model import (
    TransformersModel,
    asked_without_weights,
    load_transformers,
    shape_of,
)
from radixlm.models.transformers_source import source_in
from radixlm.products.gemm_choice import Choose


def by_transformers(config: EngineConfig, files: ModelFiles) -> bool:
    """Whether transformers computes a model, as --model-impl says; auto: where there is no file for
    it. Raises ConfigError for a GGUF file that transformers is to take.
    """
    if isinstance(files, ModelFile):
        if config.model_impl == "transformers":
            raise ConfigError(
                f"--model-impl transformers is for folders; {str(files.path)!r} is a GGUF file"
            )
        return False
    if config.model_impl != "auto":
        return config.model_impl == "transformers"
    return str(files.config().get("model_type")) not in ARCHITECTURES


def config_of(config: EngineConfig, files: ModelFiles) -> ModelConfig:
    """Raises ConfigError, ModelError."""
    if not by_transformers(config, files):
        return load_config(files)
    for name in ("quantization", "deterministic"):
        if getattr(config, name):
            raise ConfigError(f"--{name} is not for models that transformers computes")
    source = source_in(_library(files), files.path)
    if source.lengthens and config.kv_cache_dtype == "int8":
        raise ConfigError(
            f"--kv-cache-dtype int8 is not for {source.text.model_type}, whose keys have numbers "
            "beside them that would be rounded with them"
        )
    return shape_of(source, files.generation_config())


def unloaded(files: ModelFiles) -> ModelConfig:
    """The shape of a model that transformers computes, as its modules say it. Raises ModelError."""
    library = _library(files)
    return asked_without_weights(library, source_in(library, files.path), files.generation_config())


def load_foreign(
    files: ModelFiles,
    shape: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    choose: Choose,
) -> TransformersModel:
    """The model, by transformers. shape: as `config_of` gives it. Raises ModelError."""
    return load_transformers(_library(files), files.path, shape, dtype, device, choose)


def _library(files: ModelFiles) -> Any:
    """Import transformers, not before it is needed: it takes seconds."""
    try:
        return importlib.import_module("transformers")
    except ImportError:
        name = files.config().get("model_type")
        raise UnsupportedModelError(
            f"config field 'model_type' is {name!r:.200}, which has no file here (there are: "
            f"{', '.join(ARCHITECTURES)}); transformers may know it, and is not installed: "
            f"{INSTALL}"
        ) from None
