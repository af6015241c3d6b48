"""What would be served is said by the heads of files: their weights are not read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from radixlm import Engine
from radixlm.assembly import appraisal
from radixlm.assembly.appraisal import Appraisal, appraise
from radixlm.assembly.chosen import chosen
from radixlm.core.config import EngineConfig
from radixlm.core.errors import CheckpointError
from radixlm.formats.gguf_file import GGUFFile
from radixlm.models.safetensors_files import StoredTensor
from radixlm.testing.float_folders import FloatRecipe, write_floats
from radixlm.testing.gguf_writer import write_gguf
from radixlm.testing.reference import make_checkpoint
from radixlm.testing.whole_models import make_whole


@pytest.fixture(autouse=True)
def unread(monkeypatch: pytest.MonkeyPatch) -> None:
    """No weight can be read."""
    for kind, name in ((StoredTensor, "read"), (StoredTensor, "read_part"), (GGUFFile, "data")):
        monkeypatch.delattr(kind, name)


def appraised(model: Path) -> Appraisal:
    return appraise(EngineConfig(model=str(model)))[0]


def test_the_text_of_a_model_of_more(tmp_path: Path) -> None:
    whole = make_whole(tmp_path, "internvl", "qwen2")
    found = appraised(tmp_path)
    text = 4 * sum(each.numel() for each in whole.model.language_model.parameters())
    head = 4 * whole.lm_head.weight.numel()
    assert (found.model_type, found.computed_by) == ("qwen2", "radixlm")
    assert found.stored == {"F32": text}
    assert found.weight_bytes == text + head  # a packed copy
    assert found.kv_bytes == 1000 * 3 * 2 * 2 * 16 * 4
    assert found.unused
    assert all("vision" in name or "projector" in name for name in found.unused)


def test_shards_that_are_not_opened(tmp_path: Path) -> None:
    make_whole(tmp_path, "internvl", "qwen2")
    stored = load_file(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    text = {name: its for name, its in stored.items() if "language" in name or "head" in name}
    save_file(text, tmp_path / "a.safetensors")
    (tmp_path / "b.safetensors").write_bytes(b"not one")
    index = {name: f"{'a' if name in text else 'b'}.safetensors" for name in stored}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert set(appraised(tmp_path).unused) == stored.keys() - text.keys()


def test_one_that_transformers_computes(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "gpt2")
    found = appraised(folder)
    assert (found.model_type, found.computed_by) == ("gpt2", "transformers")
    assert found.kv_bytes == 1000 * 3 * 2 * 64 * 4


def test_a_gguf_file(tmp_path: Path) -> None:
    folder, path = tmp_path / "folder", tmp_path / "model.gguf"
    make_checkpoint(folder, "qwen3")
    write_gguf(folder, path, "Q8_0")
    found = appraised(path)
    assert (found.model_type, found.file_format) == ("qwen3", "gguf")
    assert set(found.stored) == {"Q8_0", "F32"}


@pytest.mark.parametrize(
    ("kind", "each"), [("Q8_0", 1.0625), ("Q4_1", 0.625), ("IQ4_NL", 0.5625), ("F16", 2)]
)
@pytest.mark.parametrize("tied", [False, True])
def test_a_gguf_file_s_memory(tmp_path: Path, kind: str, each: float, tied: bool) -> None:
    folder, path = tmp_path / "folder", tmp_path / "model.gguf"
    make_checkpoint(folder, "qwen3", tie_word_embeddings=tied)
    weights = write_gguf(folder, path, kind)
    numbers = {name: its.numel() for name, its in weights.items() if its.dim() == 2}
    embedding = numbers.pop("model.embed_tokens.weight")
    head = numbers.pop("lm_head.weight", embedding)
    plain = sum(its.numel() for its in weights.values() if its.dim() == 1)
    products = sum(numbers.values())
    # A tied head and its embedding are the same codes; of floats a copy is packed.
    products += embedding if tied and kind != "F16" else embedding + head
    assert appraised(path).weight_bytes == 2 * plain + int(each * products)


def test_codes_are_floats_on_a_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_a_gpu(config: EngineConfig) -> Any:
        files, model, _, dtype = chosen(config)
        return files, model, torch.device("cuda"), dtype

    monkeypatch.setattr(appraisal, "chosen", on_a_gpu)
    plain = make_checkpoint(tmp_path / "plain", "qwen3")
    write_floats(plain, tmp_path / "fp8", FloatRecipe("fp8"))
    write_gguf(plain, tmp_path / "model.gguf", "Q8_0")
    nbytes = sum(its.numel() for its in load_file(plain / "model.safetensors").values()) * 4
    assert appraised(plain).weight_bytes == nbytes
    assert appraised(tmp_path / "fp8").weight_bytes == nbytes
    assert appraised(tmp_path / "model.gguf").weight_bytes == nbytes // 2


def test_what_loading_would_refuse(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "qwen3")
    stored = load_file(folder / "model.safetensors")
    del stored["model.norm.weight"]
    save_file(stored, folder / "model.safetensors")
    for tried in (appraised, Engine):
        with pytest.raises(CheckpointError, match=r"lacks .*model\.norm\.weight"):
            tried(str(folder))
