"""The files of a model, in a folder or in one GGUF file: the files of its weights, and what is
beside them.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from radixlm.core.errors import CheckpointError
from radixlm.formats.classifiers import is_classifier
from radixlm.formats.files import read_json_object
from radixlm.formats.gguf_config import config_of
from radixlm.formats.gguf_file import GGUFFile
from radixlm.formats.gguf_tokens import generation_config_of, tokenizer_config_of
from radixlm.formats.text_part import text_config
from radixlm.formats.weight_files import main_dtype, weight_files

_LONGEST_NAME = 100
_CACHED = re.compile(r"models--(.+)/snapshots/[0-9a-f]{40}")


class ModelFolder:
    """A folder in Hugging Face format: its JSON files, read when asked for; the config once."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def name(self) -> str:
        """The folder's; of one in the Hub's cache, models--OWNER--NAME/snapshots/COMMIT, the
        model's.
        """
        path = self.path.resolve()
        cached = _CACHED.fullmatch("/".join(path.parts[-3:]))
        return path.name if cached is None else cached[1].replace("--", "/", 1)

    def config(self) -> Mapping[str, Any]:
        """The config of the model's text, with the weights' own type where it names none. Raises
        CheckpointError where there is none, or it cannot be read.
        """
        return self._config

    @functools.cached_property
    def _config(self) -> Mapping[str, Any]:
        whole = self.whole_config()
        config = text_config(whole)
        if is_classifier(whole):  # its own head stands beside; its decoder is as any other
            config["tie_word_embeddings"] = True
            config.pop("architectures", None)
        named = [config.get(name) for name in ("dtype", "torch_dtype")]
        if all(each in (None, "auto") for each in named):
            config |= {"dtype": main_dtype(self.path), "torch_dtype": None}
        return config

    def whole_config(self) -> dict[str, Any]:
        """All that config.json says. Raises CheckpointError."""
        if not self.path.is_dir():
            raise CheckpointError(
                f"{self.path} is not a folder; a model is a folder with a config.json"
            )
        path = self.path / "config.json"
        if not path.exists():
            held = chain(self.path.glob("*/config.json"), self.path.glob("*/*.gguf"))
            inner = next((f", perhaps {str(its.parent)!r}" for its in held), "")
            raise CheckpointError(
                f"{self.path} has no config.json: give a model's folder in Hugging Face format, or "
                f"a GGUF file{inner}"
            )
        return read_json_object(path)

    def generation_config(self) -> Mapping[str, Any]:
        """Empty where there is none. Raises CheckpointError where it cannot be read."""
        path = self.path / "generation_config.json"
        return read_json_object(path) if path.is_file() else {}

    def tokenizer_config(self) -> Mapping[str, Any]:
        """The config, with what older files have beside it: names of special tokens, a chat
        template. Empty where there is none. Raises CheckpointError where one cannot be read.
        """
        files = ("special_tokens_map", "chat_template", "tokenizer_config")
        found: dict[str, Any] = {}
        for path in (self.path / f"{name}.json" for name in files):
            given = read_json_object(path) if path.exists() else {}
            found |= {name: value for name, value in given.items() if value is not None}
        return found

    def weights(self) -> list[Path]:
        """The files that a loader reads, no more and no less. Raises CheckpointError."""
        return weight_files(self.path)


class ModelFile:
    """A GGUF file, whose head is read once: the same in its words. Raises CheckpointError."""

    def __init__(self, path: Path) -> None:
        self.path, self.gguf = path, GGUFFile(path)

    @property
    def name(self) -> str:
        """The model's own name, where that is fit to be shown."""
        name: str = self.gguf.get("general.name", str, "")
        fit = name.isprintable() and 0 < len(name.strip()) <= _LONGEST_NAME
        return name.strip() if fit else self.path.stem

    def config(self) -> Mapping[str, Any]:
        return config_of(self.gguf)

    def generation_config(self) -> Mapping[str, Any]:
        return generation_config_of(self.gguf)

    def tokenizer_config(self) -> Mapping[str, Any]:
        return tokenizer_config_of(self.gguf)

    def weights(self) -> list[Path]:
        return self.gguf.paths


ModelFiles = ModelFolder | ModelFile


def files_of(model: Path | ModelFiles) -> ModelFiles:
    """The files of a folder or a GGUF file. Raises CheckpointError for a broken file."""
    if not isinstance(model, Path):
        return model
    return ModelFile(model) if model.is_file() else ModelFolder(model)
