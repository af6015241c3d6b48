"""Of models of text and images the text is served, as transformers computes it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from radixlm import Engine, SamplingParams
from radixlm.testing.reference import greedy
from radixlm.testing.whole_models import make_whole

STEPS = 10
PARAMS = SamplingParams(max_tokens=STEPS, temperature=0, ignore_eos=True)
# Without 1, which Kosmos takes for padding.
PROMPTS = [[*range(9, 34), *range(7 * i + 2, 7 * i + 5 + i)] for i in range(3)]
_MROPE = {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [2, 3, 3]}
_CROSSED = {
    "cross_attention_layers": [1],
    "num_hidden_layers": 4,
    "bos_token_id": 1,
    "pad_token_id": 0,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
}
_IMAGE = {"<image>": 300}
_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
_KINDS = {"rope_parameters": {"full_attention": _ROPE, "sliding_attention": _ROPE}}
_STEP = {
    "num_hidden_layers": 4,
    "layer_types": ["full_attention", "sliding_attention"] * 2,
    "sliding_window": 17,
    "mlp_layer_types": ["dense", "sparse"] * 2,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
}
_COSMOS = {"rope_parameters": _MROPE, "model_type": "qwen3_vl_text"}
_MUSE = {name: its for name, its in _STEP.items() if name != "layer_types"}
_MUSE |= {"moe_hidden_size": 32}
_OCR = {
    "mlp_layer_types": ["dense", "sparse", "sparse"],
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "num_key_value_heads": 4,
}
# No more layers, or wider ones, than a class allows.
WHOLE: list[Any] = [
    ("internvl", "qwen2", {}),
    ("qwen2_vl", "qwen2", {"rope_parameters": _MROPE}),
    # By transformers' class of the whole; layers that look at images are passed over.
    ("mllama", "mllama_text_model", _CROSSED),
    pytest.param("gemma3", "gemma3_text", {}, marks=pytest.mark.slow),
    pytest.param("gemma4", "gemma4_text", {}, marks=pytest.mark.slow),
    pytest.param("gemma4_unified", "gemma4_unified_text", {}, marks=pytest.mark.slow),
    pytest.param("llama4", "llama4_text", {}, marks=pytest.mark.slow),
    pytest.param("qwen3_vl", "qwen3", {"rope_parameters": _MROPE}, marks=pytest.mark.slow),
    pytest.param(
        *("qwen3_vl_moe", "qwen3_moe", {"rope_parameters": _MROPE, "moe_intermediate_size": 40}),
        marks=pytest.mark.slow,
    ),
    pytest.param("mistral3", "mistral", {}, marks=pytest.mark.slow),
    pytest.param("paddleocr_vl", "ernie4_5", {"rope_parameters": _MROPE}, marks=pytest.mark.slow),
    pytest.param("aria", "aria_text", {"moe_num_experts": 4}, marks=pytest.mark.slow),
    # The whole wants an image.
    ("kosmos-2", "kosmos-2", {}),
    pytest.param("kosmos-2.5", "kosmos-2", {}, marks=pytest.mark.slow),
    pytest.param("blip", "blip", {}, marks=pytest.mark.slow),
    # Without a config of its text.
    pytest.param("chameleon", "chameleon", {"vocabulary_map": _IMAGE}, marks=pytest.mark.slow),
    pytest.param("cohere_compass", "cohere_compass_text", _KINDS, marks=pytest.mark.slow),
    pytest.param("step3p7", "step3p5", _STEP, marks=pytest.mark.slow),
    pytest.param("cosmos3_omni", "qwen3", _COSMOS, marks=pytest.mark.slow),
    pytest.param("muse_spark", "muse_spark_text", _MUSE, marks=pytest.mark.slow),
    pytest.param("deepseek_ocr2", "deepseek_ocr2_text", _OCR, marks=pytest.mark.slow),
]


def answers(folder: Path) -> list[list[int]]:
    with Engine(str(folder), kv_tokens=600, dtype="float32") as engine:
        return [list(output.token_ids) for output in engine.generate(PROMPTS, PARAMS)]


@pytest.mark.parametrize(("name", "family", "fields"), WHOLE)
def test_the_text_as_transformers_computes_it(
    tmp_path: Path, name: str, family: str, fields: dict[str, Any]
) -> None:
    whole = make_whole(tmp_path, name, family, **fields)
    alone = getattr(whole, "text_decoder", None) or getattr(whole, "text_model", whole)
    assert answers(tmp_path) == greedy(alone, PROMPTS, STEPS).tokens


def test_files_without_text_are_not_opened(tmp_path: Path) -> None:
    whole = make_whole(tmp_path / "whole", "internvl", "qwen2")
    stored = load_file(tmp_path / "whole" / "model.safetensors")
    folder, old = tmp_path / "old", {"model.language_model.": "language_model.model."}
    folder.mkdir()
    for path in (tmp_path / "whole").glob("*.json"):
        shutil.copy(path, folder)
    named = {}
    for name, tensor in stored.items():
        for new, before in old.items():
            named[name.replace(new, before)] = tensor.contiguous()
    text = {name: its for name, its in named.items() if "language_model" in name or "head" in name}
    save_file(text, folder / "a.safetensors")
    (folder / "b.safetensors").write_bytes(b"not one")
    index = {name: f"{'a' if name in text else 'b'}.safetensors" for name in named}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    assert answers(folder) == greedy(whole, PROMPTS, STEPS).tokens
