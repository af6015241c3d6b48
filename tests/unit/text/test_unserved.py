"""What can not be served is told apart, in words, with the command that helps."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from radixlm.core.errors import CheckpointError, ModelError, UnsupportedModelError
from radixlm.text.model_folder import DEMO_MODEL, is_model, loadable, resolve_model

# A GGUF file of nothing.
EMPTY = "GGUF\3" + "\0" * 19


def folder_with(folder: Path, files: dict[str, Any]) -> str:
    folder.mkdir()
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    return str(folder)


def refused(model: str) -> UnsupportedModelError:
    with pytest.raises(UnsupportedModelError) as caught:
        resolve_model(model)
    return caught.value


def quantized(method: str) -> dict[str, Any]:
    return {"config.json": {"model_type": "llama", "quantization_config": {"quant_method": method}}}


@pytest.mark.parametrize(
    ("files", "what"),
    [
        (quantized("quark"), "quantized with Quark"),
        (quantized("torchao"), "quantized with torchao"),
        (quantized("auto-round"), "quantized with AutoRound"),
        (quantized("hqq"), "quantized with HQQ"),
        (quantized("new"), "quantized with 'new'"),
        ({"config.json": {"quantization_config": []}}, "quantized with an unnamed method"),
        ({"config.json": {"quantization": {"bits": 4}}}, "quantized with MLX"),
    ],
)
def test_each_kind_is_named_with_the_command_for_another(tmp_path, files, what):
    error = refused(folder_with(tmp_path / "model", files))
    assert what in error.message
    assert "not supported yet" in error.message
    if "quantized" in what:
        assert (
            "float16, and by compressed-tensors, gptq, awq, mxfp4, fp8, fbgemm_fp8, modelopt"
            in error.message
        )
    [serve] = error.commands
    assert serve.endswith("radixlm serve OWNER/NAME")


@pytest.mark.parametrize(
    ("method", "how"),
    [
        ("hqq", "--quantization int8, fp8 or int4 makes as small while it is loaded:"),
        ("torchao", "while it is loaded, or quantize it with llm-compressor"),
        ("intel/auto-round", r"save it from AutoRound with format='auto_gptq'"),
    ],
)
def test_a_quantized_model_is_refused_with_how_to_convert_it(tmp_path, method, how):
    assert how in str(refused(folder_with(tmp_path / "model", quantized(method))))


def test_a_gguf_file_is_known_by_its_first_bytes(tmp_path):
    for name in ("model.gguf", "model"):
        (tmp_path / name).write_text(EMPTY)
        assert resolve_model(str(tmp_path / name)) == tmp_path / name
    for name, text in (("other.gguf", "is not a GGUF file"), ("model.bin", "is a file; give")):
        (tmp_path / name).write_bytes(b"PK")
        with pytest.raises(ModelError, match=text):
            resolve_model(str(tmp_path / name))


def test_a_damaged_file_is_an_error_before_anything_is_loaded(tmp_path):
    (tmp_path / "m.gguf").write_text(EMPTY[:-1])
    with pytest.raises(CheckpointError, match="ends within"):
        resolve_model(str(tmp_path / "m.gguf"))


def test_what_is_a_model_and_what_a_prompt(tmp_path):
    (tmp_path / "my model.gguf").write_text(EMPTY)
    (tmp_path / "notes.txt").write_text("x")
    models = (tmp_path, tmp_path / "my model.gguf", tmp_path / "notes.txt", tmp_path / "x.gguf")
    assert [is_model(str(path)) for path in models] == [True, True, False, False]
    assert not is_model("")


def test_a_folder_may_hold_one_gguf_file(tmp_path):
    folder = Path(folder_with(tmp_path / "model", {"a.gguf": EMPTY}))
    assert resolve_model(str(folder)) == folder / "a.gguf"
    (folder / "b.gguf").write_text(EMPTY)
    error = refused(str(folder))
    assert "2 GGUF files (a.gguf, b.gguf)" in error.message
    assert error.commands[0].endswith(f"radixlm serve {folder}/a.gguf")
    (folder / "config.json").write_text("{}")
    assert "2 GGUF files" in refused(str(folder)).message
    (folder / "b.gguf").unlink()  # many such folders keep the config of the model
    assert resolve_model(str(folder)) == folder / "a.gguf"
    (folder / "model.safetensors").write_text("")
    assert resolve_model(str(folder)) == folder


LLAMA = {"model_type": "llama"}
NO_CONFIG = "has no config.json: give a model's folder"


@pytest.mark.parametrize(
    ("files", "what"),
    [
        ({}, NO_CONFIG),
        ({"sub/config.json": LLAMA}, rf"{NO_CONFIG}.*, perhaps '.*/sub'"),
        ({"sub/a.gguf": EMPTY}, rf"{NO_CONFIG}.*, perhaps '.*/sub'"),
        ({"model.safetensors": ""}, NO_CONFIG),
        ({"config.json": "[1]"}, "holds list"),
        ({"config.json": "{"}, "not readable JSON"),
        ({"config.json": {}}, "'model_type' is None"),
        (
            {"config.json": {"model_type": "gemma3", "text_config": {"model_type": 3}}},
            "'model_type' of the text is 3",
        ),
        ({"config.json": LLAMA}, "fetch it again"),
        ({"config.json": LLAMA, "model.safetensors.index.json": "{}"}, "no weight_map"),
    ],
)
def test_a_broken_folder_is_an_error_before_anything_is_loaded(tmp_path, files, what):
    folder = folder_with(tmp_path / "model", files)
    with pytest.raises(ModelError, match=what):
        loadable(folder)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "\ud800", "", ".", 3, None, ["a"]])
def test_a_shard_s_name_may_be_anything(tmp_path, name):
    index = {"weight_map": {"model.norm.weight": name}}
    files = {"config.json": LLAMA, "model.safetensors.index.json": index}
    with pytest.raises(CheckpointError, match=r"weight_map|lacks the shard"):
        loadable(folder_with(tmp_path / "model", files))


def test_a_pipe_is_no_model(tmp_path):
    folder = Path(folder_with(tmp_path / "model", {}))
    os.mkfifo(folder / "a.gguf")
    with pytest.raises(ModelError, match=r"a\.gguf' is not a GGUF file"):
        resolve_model(str(folder))


def test_the_parts_of_a_split_file_are_one_file(tmp_path):
    """Beside a file with the model's vision, as hubs have them."""
    folder = Path(folder_with(tmp_path / "model", {"mmproj-m-F16.gguf": EMPTY}))
    writer = gguf.GGUFWriter(folder / "m.gguf", "llama", split_max_tensors=1)
    for number in range(3):
        writer.add_tensor(f"t{number}", np.zeros(4, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    first = folder / "m-00001-of-00003.gguf"
    assert resolve_model(str(folder)) == first
    (folder / "other.gguf").write_text(EMPTY)
    assert "2 GGUF files (m-00001-of-00003.gguf, other.gguf)" in refused(str(folder)).message
    (folder / "other.gguf").unlink()
    first.rename(folder / "elsewhere")
    with pytest.raises(ModelError, match=r"m-00001-of-00003\.gguf cannot be read: .*No such file"):
        resolve_model(str(folder))


def test_an_adapter_names_its_model(tmp_path):
    known = {"adapter_config.json": {"base_model_name_or_path": "Qwen/Qwen3-0.6B"}}
    error = refused(folder_with(tmp_path / "hub", known))
    assert "is a LoRA adapter for the model 'Qwen/Qwen3-0.6B'" in error.message
    assert f"--lora-paths {tmp_path / 'hub'}" in error.message
    assert error.commands[0].endswith("radixlm serve Qwen/Qwen3-0.6B")
    local = {"adapter_config.json": {"base_model_name_or_path": "/models/base"}}
    error = refused(folder_with(tmp_path / "local", local))
    assert "for the model '/models/base'" in error.message
    assert error.commands == ()
    assert "is a LoRA adapter, not" in str(
        refused(folder_with(tmp_path / "broken", {"adapter_config.json": "["}))
    )


def test_a_merged_model_may_keep_its_adapter_s_config(tmp_path):
    files = {"adapter_config.json": {}, "config.json": {}, "model.safetensors": ""}
    model = folder_with(tmp_path / "merged", files)
    assert str(resolve_model(model)) == model


@pytest.mark.parametrize(
    "card", ["base_model: A/B-7B", "base_model:\n- A/B-7B", 'base_model: "A/B-7B"']
)
def test_the_model_card_says_what_a_checkpoint_was_quantized_from(tmp_path, card):
    files = {**quantized("hqq"), "README.md": f"---\nlicense: mit\n{card}\n---\n# Model\n"}
    [serve] = refused(folder_with(tmp_path / "m", files)).commands
    assert serve.endswith("radixlm serve A/B-7B")


def test_the_hub_s_own_cache_leads_to_the_version_in_it(tmp_path):
    model = folder_with(tmp_path / "models--A--B", {"snapshots/abc/config.json": {}})
    assert refused(model).commands[0].endswith(f"radixlm serve {model}/snapshots/abc")


@pytest.mark.parametrize("config", ["[" * 100_000, "[1]", "\xff", '{"model_type": "llama"}'])
def test_what_else_is_wrong_with_a_config_is_told_by_its_reader(tmp_path, config):
    model = folder_with(tmp_path / "model", {"config.json": config})
    assert str(resolve_model(model)) == model


@pytest.mark.parametrize("model", ["/no/where", "x" * 5000, "a\0b", "", "~nobody-of-that-name/x"])
def test_paths_that_can_not_be_are_no_folders(model):
    with pytest.raises(ModelError, match="there is no folder"):
        resolve_model(model)


def test_a_gguf_file_that_is_missing_is_called_a_file():
    with pytest.raises(ModelError, match=r"there is no file '/no/where\.gguf'"):
        resolve_model("/no/where.gguf")


def test_the_embedded_model_has_a_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert resolve_model("radixlm-demo") == resolve_model(None) == DEMO_MODEL
    (tmp_path / "radixlm-demo").mkdir()
    assert resolve_model("radixlm-demo") == Path("radixlm-demo")
