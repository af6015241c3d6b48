"""The text of models of more: its config, and its tensors whatever their prefix."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from radixlm.core.errors import CheckpointError
from radixlm.formats.text_part import has_other_parts, text_config, text_names
from radixlm.formats.weight_files import text_tensors


@pytest.mark.parametrize(
    ("prefix", "head", "others"),
    [
        ("language_model.model.", "language_model.lm_head.weight", ("vision_tower.x",)),
        ("model.language_model.", "lm_head.weight", ("model.visual.x", "mtp.layers.0.x")),
        ("model.text_model.", "lm_head.weight", ("model.vision_model.layers.0.x",)),
        ("language_model.", "lm_head.weight", ("audio_tower.layers.0.x",)),
        ("model.", "lm_head.weight", ("visual.x", "model.visual.blocks.0.x")),
        (
            "thinker.model.",
            "thinker.lm_head.weight",
            ("talker.model.embed_tokens.weight", "talker.lm_head.weight", "thinker.visual.x"),
        ),
    ],
)
def test_tensors_by_their_prefix(prefix: str, head: str, others: tuple[str, ...]) -> None:
    own = ["embed_tokens.weight", "layers.0.mlp.up_proj.weight", "norm.weight"]
    names = [*others, *(prefix + name for name in own), head]
    wanted = {prefix + name: f"model.{name}" for name in own} | {head: "lm_head.weight"}
    assert text_names(names) == wanted


def test_a_decoder_within_the_text() -> None:
    names = ["language_model.model.decoder.embed_tokens.weight", "vision_model.embed.weight"]
    assert text_names(names) == {names[0]: "model.decoder.embed_tokens.weight"}


def test_a_head_in_parts() -> None:
    names = ["language_model.model.embed_tokens.weight", "language_model.lm_head.qweight"]
    names += ["language_model.lm_head.scales", "visual.lm_head.scales"]
    heads = {"language_model.lm_head.qweight": "lm_head.qweight"}
    heads |= {"language_model.lm_head.scales": "lm_head.scales"}
    assert text_names(names) == {names[0]: "model.embed_tokens.weight"} | heads


def test_names_of_bert_in_a_text() -> None:
    embedding = "bert.embeddings.word_embeddings.weight"
    names = [
        f"text_decoder.{embedding}",
        "text_decoder.cls.predictions.bias",
        f"qformer.{embedding}",
    ]
    assert text_names(names).keys() == set(names[:2])


def test_no_text() -> None:
    assert text_names(["visual.x", "audio.embed_tokens.weight"]) == {}


def test_what_is_said_outside_counts() -> None:
    outer = {
        "model_type": "gemma3",
        "architectures": ["Gemma3ForConditionalGeneration"],
        "eos_token_id": [1, 106],
        "quantization_config": {"quant_method": "gptq"},
        "torch_dtype": "bfloat16",
        "text_config": {"hidden_size": 64, "eos_token_id": 2},
        "vision_config": {"hidden_size": 32},
    }
    assert text_config(outer) == {
        "model_type": "gemma3_text",
        "eos_token_id": [1, 106],
        "quantization_config": {"quant_method": "gptq"},
        "torch_dtype": "bfloat16",
        "hidden_size": 64,
        "tie_word_embeddings": True,
    }


def test_fields_beside_the_other_parts() -> None:
    outer = {"model_type": "qwen2_5_vl", "hidden_size": 64, "vision_config": {"depth": 1}}
    made = text_config(outer)
    assert (made["model_type"], made["hidden_size"]) == ("qwen2_5_vl_text", 64)
    assert has_other_parts(outer)


def test_one_part_in_another() -> None:
    inner = {"text_config": {"model_type": "qwen2", "hidden_size": 8}}
    made = text_config({"model_type": "qwen2_5_omni", "thinker_config": inner})
    assert (made["model_type"], made["hidden_size"]) == ("qwen2", 8)


def test_a_model_of_text_alone_stays_as_it_is() -> None:
    config = {"model_type": "llama", "tie_word_embeddings": None}
    assert text_config(config) == config
    assert not has_other_parts(config)


@pytest.mark.parametrize(
    ("outer", "inner", "tied"),
    [(None, None, True), (False, None, False), (None, True, True), (True, False, True)],
)
def test_a_tied_head(outer: bool | None, inner: bool | None, tied: bool) -> None:
    config = {"model_type": "gemma3", "tie_word_embeddings": outer}
    made = text_config({**config, "text_config": {"tie_word_embeddings": inner}})
    assert made["tie_word_embeddings"] is tied


def test_names_of_transformers_4() -> None:
    """transformers 4 wrote Glm4vMoe_text, where 5 has glm4v_moe_text."""
    config = {"model_type": "glm4v_moe", "text_config": {"model_type": "Glm4vMoe_text"}}
    assert text_config(config)["model_type"] == "glm4v_moe_text"
    other = {"model_type": "llava", "text_config": {"model_type": "new_text"}}
    assert text_config(other)["model_type"] == "new_text"


def test_nesting_has_an_end() -> None:
    config: dict[str, Any] = {"model_type": "qwen2", "hidden_size": 8}
    for _ in range(5000):
        config = {"model_type": "internvl", "text_config": config}
    assert text_config(config)["model_type"] == "qwen2"  # what its text is by default


def test_what_is_no_flag_stays() -> None:
    config = {"model_type": "gemma3", "text_config": {"tie_word_embeddings": "no"}}
    assert text_config(config)["tie_word_embeddings"] == "no"


@pytest.mark.parametrize("indexed", [False, True])
def test_files_without_a_text(tmp_path: Path, indexed: bool) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma3", "text_config": {}}))
    header = b'{"visual.x": {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}}'
    name = "a.safetensors" if indexed else "model.safetensors"
    (tmp_path / name).write_bytes(len(header).to_bytes(8, "little") + header)
    if indexed:
        index = json.dumps({"weight_map": {"visual.x": name}})
        (tmp_path / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=r"none of its tensors .* embed_tokens"):
        text_tensors(tmp_path)
