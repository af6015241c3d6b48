"""How an embedding is made of hidden states, as sentence-transformers' files in a folder say it.

Source: https://sbert.net/docs/package_reference/sentence_transformer/models.html.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from radixlm.core.errors import CheckpointError, InvalidRequestError, wrong
from radixlm.core.request import Pooled
from radixlm.formats.files import read_bytes, read_json_object
from radixlm.formats.model_files import ModelFile, ModelFiles, ModelFolder

_BY_TRANSFORMERS = "embeddings of models that transformers computes are not supported"
_MODES = {"lasttoken": Pooled.LAST, "cls": Pooled.FIRST, "mean": Pooled.MEAN}
# Older files have a switch for each.
_SWITCHES = {"lasttoken": "lasttoken", "cls_token": "cls", "mean_tokens": "mean"}
_SWITCH = "pooling_mode_"
_KINDS = re.compile(r"Transformer,Pooling(,Dense)*(,Normalize)?")
_ACTIVATIONS = ("Identity", "Tanh")


@dataclass(frozen=True, slots=True, eq=False)
class DenseLayer:
    """A module after the pooling. weight: (out, in). bias: (out,). activation: torch's name."""

    weight: npt.NDArray[np.float32]
    bias: npt.NDArray[np.float32] | None
    activation: str

    def __call__(self, state: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """(in,) -> (out,)"""
        made: npt.NDArray[np.float32] = self.weight @ state
        if self.bias is not None:
            made = made + self.bias
        return np.tanh(made) if self.activation == "Tanh" else made


@dataclass(frozen=True, slots=True)
class Pooling:
    """pooled: of which tokens the states are. normalize: to length 1. prompts: texts to be put
    before an input, by name; default_prompt: the name of the one that is where none is asked for.
    dimensions: where they are others than the model's. refused: why there are no embeddings;
    empty: there are.
    """

    pooled: Pooled = Pooled.LAST
    normalize: bool = True
    prompts: Mapping[str, str] = field(default_factory=dict)
    default_prompt: str | None = None
    dimensions: int | None = None
    refused: str = ""

    def check(self) -> None:
        """Raise InvalidRequestError where there are no embeddings."""
        if self.refused:
            raise InvalidRequestError(f"this model gives no embeddings here: {self.refused}")

    def check_dimensions(self, dimensions: int | None, hidden_size: int) -> None:
        """Raise InvalidRequestError for more dimensions than the model has."""
        width = self.dimensions or hidden_size
        if dimensions is not None and not 0 < dimensions <= width:
            raise wrong("dimensions", f"must be from 1 to {width}, the model's, got {dimensions}")

    def prompt(self, name: str | None) -> str:
        """The text before an input. Raises InvalidRequestError for a name that there is not."""
        if name is not None and name not in self.prompts:
            known = ", ".join(map(repr, self.prompts)) or "none"
            raise wrong("prompt_name", f"is {name!r:.80}; the model's prompts are {known}")
        name = self.default_prompt if name is None else name
        return "" if name is None else self.prompts[name]

    def first_prompt(self, *names: str) -> str:
        """The text of the first of these names that there is, else of the default one, as
        sentence-transformers' encode_query and encode_document take it.
        """
        return self.prompt(next((name for name in names if name in self.prompts), None))

    def embedding(
        self, hidden: npt.NDArray[np.float32], dimensions: int | None = None
    ) -> npt.NDArray[np.float32]:
        """The embedding of a pooled state: its first `dimensions` alone, then normalized
        (Matryoshka).
        """
        cut = hidden[:dimensions]
        if not self.normalize and dimensions is None:
            return cut
        length = max(float(np.linalg.norm(cut.astype(np.float64))), 1e-12)
        made: npt.NDArray[np.float32] = (cut / length).astype(np.float32)
        return made


def pooling_of(files: ModelFiles, *, foreign: bool) -> Pooling:
    """The pooling that a model's files ask for. A folder that says nothing has its last
    token pooled, and normalized. foreign: transformers computes it. Raises CheckpointError for a
    broken file.
    """
    if foreign:
        return Pooling(refused=_BY_TRANSFORMERS)
    if isinstance(files, ModelFile):
        return Pooling()
    if files.config().get("use_bidirectional_attention"):
        text = "its tokens see those after them (use_bidirectional_attention)"
        return Pooling(refused=f"{text}, which is not supported")
    path = files.path / "modules.json"
    if not path.is_file():
        return Pooling()
    modules = _modules(path)
    names = [name for name, _ in modules]
    config = files.path / "config_sentence_transformers.json"
    said = read_json_object(config) if config.is_file() else {}
    prompts, default = said.get("prompts") or {}, said.get("default_prompt_name")
    if not isinstance(prompts, dict) or not all(isinstance(v, str) for v in prompts.values()):
        raise CheckpointError(f"{config}: prompts must be texts by name, got {prompts!r:.80}")
    if default is not None and default not in prompts:
        raise CheckpointError(
            f"{config}: default_prompt_name {default!r:.80} is not among the prompts"
        )
    pooled, refused = Pooled.LAST, ""
    if not _KINDS.fullmatch(",".join(names)):
        refused = f"its modules {', '.join(names)} in this order are not supported"
    for name, place in modules:
        if name == "Pooling" and not refused:
            pooled, refused = _pooled(files.path / place / "config.json")
        if name == "Dense" and not refused:
            refused = _refusal_of_dense(files.path / place / "config.json")
    return Pooling(pooled, "Normalize" in names, prompts, default, refused=refused)


def module_folders(files: ModelFolder, kind: str) -> list[Path]:
    """The folders of sentence-transformers' modules of a kind, in their order. Raises
    CheckpointError.
    """
    path = files.path / "modules.json"
    found = _modules(path) if path.is_file() else []
    return [files.path / place for name, place in found if name == kind]


def dense_activation(said: Mapping[str, Any]) -> str:
    """torch's name of what follows a module Dense, by its config."""
    return str(said.get("activation_function", "Tanh")).rpartition(".")[2]


def _refusal_of_dense(path: Path) -> str:
    said = read_json_object(path)
    if (name := dense_activation(said)) not in _ACTIVATIONS:
        return f"the activation {name} of its module Dense is not supported"
    takes = said.get("module_input_name") or "sentence_embedding"
    gives = said.get("module_output_name") or takes
    if (takes, gives) != ("sentence_embedding", "sentence_embedding"):
        return f"its module Dense makes {gives} of {takes}, which is not supported"
    return ""


def _modules(path: Path) -> list[tuple[str, str]]:
    """The modules' names, without their packages', and their folders."""
    try:
        given = json.loads(read_bytes(path))
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} is not readable JSON: {error}") from None
    found = []
    for each in given if isinstance(given, list) else [given]:
        kind, place = (
            (each.get("type"), each.get("path")) if isinstance(each, dict) else (None,) * 2
        )
        if not isinstance(kind, str) or not isinstance(place, str):
            raise CheckpointError(f"{path}: a module has a type and a path, got {each!r:.80}")
        if ".." in Path(place).parts or Path(place).is_absolute():
            raise CheckpointError(f"{path}: the path {place!r:.80} leads out of the folder")
        found.append((kind.rpartition(".")[2], place))
    return found


def _pooled(path: Path) -> tuple[Pooled, str]:
    """The tokens whose states are pooled, and the reason why that is not supported; empty: it
    is.
    """
    said: Mapping[str, Any] = read_json_object(path)
    on = [name.removeprefix(_SWITCH) for name, its in said.items() if its is True]
    modes = [_SWITCHES.get(name, name) for name in on if _SWITCH + name in said]
    modes = modes or [str(said.get("pooling_mode"))]
    pooled = _MODES.get(modes[0])
    if len(modes) > 1 or pooled is None:
        return Pooled.LAST, f"it pools by {' and '.join(modes)}, which is not supported"
    if pooled is Pooled.MEAN and said.get("include_prompt") is False:
        return pooled, "its means leave out the prompt (include_prompt), which is not supported"
    return pooled, ""
