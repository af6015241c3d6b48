"""The layer that predicts a further token, as it is read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from radixlm.core.errors import CheckpointError, ConfigError
from radixlm.models import CausalLM, load_config, load_model, open_checkpoint
from radixlm.models.mtp import MtpHead, MtpWeights
from radixlm.testing.float_folders import FloatRecipe, write_floats
from radixlm.testing.quantized_folders import write_plain
from tests.tensor.mtp_layers import PLACE, make_mtp_checkpoint, store, stored

CPU = torch.device("cpu")


def model_of(folder: Path) -> CausalLM:
    its = open_checkpoint(folder), load_config(folder)
    return load_model(*its, dtype=torch.float32, device=CPU, progress=False)


def load(folder: Path) -> MtpHead:
    found = MtpWeights(folder, load_config(folder))
    return found.load(model_of(folder), dtype=torch.float32, device=CPU)


def test_copies_of_the_model_s_tables_take_no_memory(tmp_path: Path) -> None:
    folder = make_mtp_checkpoint(tmp_path, "deepseek_v3")
    head = load(folder)
    assert (head.layer.embedding, head.layer.head) == (None, None)
    tensors = stored(folder)
    tensors[f"{PLACE}.shared_head.head.weight"][5, 7] += 1
    store(folder, tensors)
    head = load(folder)
    assert head.layer.embedding is None
    own = head.layer.weights()[f"{PLACE}.shared_head.head.weight"]
    assert torch.equal(own, tensors[f"{PLACE}.shared_head.head.weight"])


def test_weights_in_8_bits_go_along(tmp_path: Path) -> None:
    """By the block, with rows of latents that change places, as DeepSeek's are published."""
    plain = make_mtp_checkpoint(tmp_path / "plain", "deepseek_v3")
    whole = write_floats(plain, tmp_path / "fp8", FloatRecipe("fp8", (128, 128)))
    expected = load(write_plain(plain, tmp_path / "whole", whole)).layer.weights()
    found = load(tmp_path / "fp8").layer.weights()
    assert found.keys() == expected.keys()
    for name, weight in found.items():
        assert torch.equal(weight, expected[name]), name
    name = f"{PLACE}.mlp.experts.0.up_proj.weight"
    assert not torch.equal(found[name], stored(plain)[name])


def test_of_several_layers_it_is_the_first(tmp_path: Path) -> None:
    folder = make_mtp_checkpoint(tmp_path, "glm4_moe", num_nextn_predict_layers=2)
    tensors = stored(folder)
    tensors["model.layers.4.eh_proj.weight"] = torch.ones(2)
    store(folder, tensors)
    names = load(folder).layer.weights()
    assert all(name.startswith(f"{PLACE}.") for name in names)


def test_what_is_said_of_experts_costs_nothing(tmp_path: Path) -> None:
    """However many a config speaks of, where the files have not so many tensors."""
    folder = make_mtp_checkpoint(tmp_path, "glm4_moe")
    config = load_config(folder)
    experts = config.traits.experts
    assert experts is not None
    many = config.traits._replace(experts=experts._replace(number=10**9))
    with pytest.raises(CheckpointError, match="experts in all layers"):
        MtpWeights(folder, replace(config, traits=many))


def test_without_such_a_layer_it_is_told(tmp_path: Path) -> None:
    folder = make_mtp_checkpoint(tmp_path, "glm4_moe")
    store(folder, {n: its for n, its in stored(folder).items() if not n.startswith(PLACE)})
    with pytest.raises(ConfigError, match=r"holds no tensor model\.layers\.3\.\*"):
        MtpWeights(folder, load_config(folder))


def test_beside_a_text_among_other_parts_it_is_found_in_its_own_file(tmp_path: Path) -> None:
    """As Qwen3.5's are published; files of other parts are not opened."""
    text, folder = make_mtp_checkpoint(tmp_path / "text", "qwen3_5_text"), tmp_path / "whole"
    folder.mkdir()
    config = {"model_type": "qwen3_5", "text_config": load_json(text), "vision_config": {}}
    (folder / "config.json").write_text(json.dumps(config))
    shards: dict[str, dict[str, torch.Tensor]] = {"text": {}, "mtp": {}}
    for name, its in stored(text).items():
        kind = "mtp" if name.startswith("mtp.") else "text"
        renamed = name.replace("model.", "model.language_model.", 1) if kind == "text" else name
        shards[kind][renamed] = its
    index = {name: f"{kind}.safetensors" for kind, its in shards.items() for name in its}
    for kind, its in shards.items():
        save_file(its, folder / f"{kind}.safetensors")
    (folder / "visual.safetensors").write_bytes(b"not one")
    index["model.visual.blocks.0.attn.qkv.weight"] = "visual.safetensors"
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    found = MtpWeights(folder, load_config(folder))
    assert [path.name for path in found.files] == ["mtp.safetensors", "text.safetensors"]
    head = found.load(model_of(folder), dtype=torch.float32, device=CPU)
    expected = load(text).layer.weights()
    assert head.layer.weights().keys() == expected.keys()
    for name, weight in head.layer.weights().items():
        assert torch.equal(weight, expected[name]), name


def load_json(folder: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config
