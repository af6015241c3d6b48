"""What sentence-transformers' files say of embeddings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from radixlm.core.errors import CheckpointError, InvalidRequestError
from radixlm.core.request import Pooled
from radixlm.formats.model_files import files_of
from radixlm.formats.pooling import Pooling, pooling_of

# As Qwen3-Embedding-0.6B has them.
KIND = "sentence_transformers.models."
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": f"{KIND}Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{KIND}Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": f"{KIND}Normalize"},
]
LAST = {"word_embedding_dimension": 4, "pooling_mode_cls_token": False}
LAST |= {"pooling_mode_mean_tokens": False, "pooling_mode_lasttoken": True, "include_prompt": True}
SAID = {"prompts": {"query": "Instruct: find\nQuery:", "document": ""}, "default_prompt_name": None}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "config.json", {"model_type": "qwen3"})
    write(tmp_path / "modules.json", MODULES)
    write(tmp_path / "1_Pooling/config.json", LAST)
    write(tmp_path / "config_sentence_transformers.json", SAID)
    return tmp_path


DENSE = {"path": "2_Dense", "type": f"{KIND}Dense"}


def write(path: Path, content: Any) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def read(folder: Path, *, foreign: bool = False) -> Pooling:
    return pooling_of(files_of(folder), foreign=foreign)


def test_a_folder_of_embeddings(folder):
    pooling = read(folder)
    pooling.check()
    assert pooling.prompt("query") == "Instruct: find\nQuery:"
    assert (pooling.prompt(None), pooling.prompt("document")) == ("", "")
    with pytest.raises(InvalidRequestError, match="the model's prompts are 'query', 'document'"):
        pooling.prompt("answer")


def test_a_default_prompt(folder):
    write(folder / "config_sentence_transformers.json", {**SAID, "default_prompt_name": "query"})
    assert read(folder).prompt(None) == "Instruct: find\nQuery:"


def test_without_such_files_last_tokens_are_of_length_one(folder):
    (folder / "modules.json").unlink()
    made = read(folder).embedding(np.array([3, 4, 12], dtype=np.float32), 2)
    np.testing.assert_allclose(made, [0.6, 0.8])


def test_what_is_not_normalized_is_so_when_it_is_cut(folder):
    write(folder / "modules.json", MODULES[:2])
    hidden = np.array([3, 4, 12], dtype=np.float32)
    np.testing.assert_array_equal(read(folder).embedding(hidden), hidden)
    np.testing.assert_allclose(read(folder).embedding(hidden, 2), [0.6, 0.8])
    with pytest.raises(InvalidRequestError, match="must be from 1 to 3"):
        read(folder).check_dimensions(4, 3)


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("modules.json", [*MODULES, {"path": "3", "type": f"{KIND}Dense"}], "in this order"),
        ("modules.json", [*MODULES, {"path": "3", "type": f"{KIND}LSTM"}], "modules .*, LSTM"),
        ("1_Pooling/config.json", {"pooling_mode_max_tokens": True}, "by max_tokens"),
        ("1_Pooling/config.json", {**LAST, "pooling_mode_cls_token": True}, "cls and lasttoken"),
        ("1_Pooling/config.json", {"pooling_mode": "weightedmean"}, "by weightedmean"),
        ("1_Pooling/config.json", {}, "by None"),
        (
            "1_Pooling/config.json",
            {"pooling_mode": "mean", "include_prompt": False},
            "leave out the prompt",
        ),
        ("config.json", {"use_bidirectional_attention": True}, "those after them"),
        ("modules.json", [*MODULES[:2], DENSE, {**DENSE, "path": "3"}], "activation GELU"),
        (
            "modules.json",
            [*MODULES[:2], DENSE, {**DENSE, "path": "4"}],
            "makes sentence_embedding of",
        ),
    ],
)
def test_what_is_not_supported_is_refused_by_name(folder, file, content, reason):
    write(folder / "2_Dense/config.json", {})
    write(folder / "3/config.json", {"activation_function": "torch.nn.GELU"})
    write(
        folder / "4/config.json",
        {"module_input_name": "token_embeddings", "module_output_name": "sentence_embedding"},
    )
    write(folder / file, content)
    with pytest.raises(InvalidRequestError, match=f"gives no embeddings here: .*{reason}"):
        read(folder).check()


@pytest.mark.parametrize(
    ("content", "pooled"),
    [
        (LAST, Pooled.LAST),
        ({"pooling_mode": "lasttoken", "include_prompt": False}, Pooled.LAST),
        ({"pooling_mode_mean_tokens": True, "include_prompt": True}, Pooled.MEAN),
        ({"pooling_mode": "mean"}, Pooled.MEAN),
        ({"pooling_mode_cls_token": True}, Pooled.FIRST),
        ({"pooling_mode": "cls"}, Pooled.FIRST),
    ],
)
def test_the_tokens_that_are_pooled(folder, content, pooled):
    write(folder / "1_Pooling/config.json", content)
    read(folder).check()
    assert read(folder).pooled is pooled


def test_models_of_transformers_are_refused(folder):
    with pytest.raises(InvalidRequestError, match="that transformers computes"):
        read(folder, foreign=True).check()


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("modules.json", [{"path": "../x", "type": "Pooling"}], "leads out of the folder"),
        ("modules.json", [{"path": "/x", "type": "Pooling"}], "leads out of the folder"),
        ("modules.json", ["Pooling"], "a module has a type and a path"),
        ("config_sentence_transformers.json", {"prompts": [1]}, "must be texts by name"),
        ("config_sentence_transformers.json", {"default_prompt_name": "a"}, "not among"),
    ],
)
def test_broken_files_are_named(folder, file, content, message):
    write(folder / file, content)
    with pytest.raises(CheckpointError, match=message):
        read(folder)
