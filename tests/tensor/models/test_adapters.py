"""Adapters against peft itself: tiny random checkpoints, float32, logits within 1e-4."""

from __future__ import annotations

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from radixlm.core.errors import CheckpointError, ModelError, UnsupportedModelError
from radixlm.layers.lora import Adapted, AdaptedRows
from radixlm.models import CausalLM, PlainCheckpoint, load_config, load_model
from radixlm.models.adapters import WEIGHTS, AdapterWeights, load_adapter
from radixlm.products.gemm_choice import one_way
from radixlm.products.quantizing import quantize
from radixlm.testing.peft_adapters import ALL, ATTENTION, adapted_logits, make_adapter
from radixlm.testing.reference import load_reference, make_checkpoint, reference_logits
from tests.tensor.attention_cases import dense_for

CPU = torch.device("cpu")
TOLERANCE = 1e-4
TARGETS = {
    "phi3": ("qkv_proj", "o_proj", "gate_up_proj", "down_proj"),
    "starcoder2": (*ATTENTION, "c_fc", "c_proj"),
    "glm": (*ATTENTION, "gate_up_proj", "down_proj"),
    "nemotron": (*ATTENTION, "up_proj", "down_proj"),
    **dict.fromkeys(("qwen3_moe", "mimo_v2_flash"), ATTENTION),
}


def load(folder: Path, **more: Any) -> CausalLM:
    checkpoint = PlainCheckpoint(folder)
    return load_model(
        checkpoint, load_config(folder), dtype=torch.float32, device=CPU, progress=False, **more
    )


@torch.inference_mode()
def logits(
    model: CausalLM, adapter: AdapterWeights, token_ids: list[int], start: int = 0
) -> Tensor:
    """All tokens, of which those from `start` on have the adapter."""
    rows = torch.arange(len(token_ids))
    attend = dense_for(model)
    adapted = Adapted([AdaptedRows(adapter.additions, start, len(token_ids))])
    return model.forward(torch.tensor(token_ids), rows, attend, rows, adapted)


def tokens(n: int) -> list[int]:
    return torch.randint(0, 320, (n,), generator=torch.Generator().manual_seed(1)).tolist()


FAMILIES = [
    *("llama", "mistral", "qwen2", "qwen3", "phi3"),
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("granite", "stablelm", "gemma", "cohere", "glm", "nemotron", "starcoder2")
    ),
    *(
        pytest.param(name, marks=pytest.mark.slow)
        for name in ("qwen3_moe", "gemma4_unified_text", "mimo_v2_flash")
    ),
]


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_logits_equal_peft(tmp_path: Path, architecture: str, packed: bool) -> None:
    base = make_checkpoint(tmp_path / "base", architecture)
    targets = TARGETS.get(architecture, ALL)
    folder = make_adapter(tmp_path / "adapter", base, targets=targets)
    model = load(base, choose=one_way if packed else None)
    token_ids = tokens(100)
    found = logits(model, load_adapter(folder, model), token_ids)
    expected = adapted_logits(base, folder, token_ids)
    assert (found - expected).abs().max() <= TOLERANCE
    plain = reference_logits(load_reference(base), token_ids)
    assert (found - plain).abs().max() > 100 * TOLERANCE, "the adapter changes nothing"


@pytest.mark.parametrize(
    "fields",
    [
        {"r": 3, "lora_alpha": 5},
        {"use_rslora": True, "r": 8},
        {"targets": ("q_proj", "v_proj")},
        {"targets": ("up_proj",)},
        {"targets": "all-linear"},
        {"targets": r".*\.layers\.[02]\.(self_attn\.(q|o)_proj|mlp\.gate_proj)"},
        {"exclude_modules": ["k_proj", "model.layers.1.mlp.down_proj"]},
        {
            "rank_pattern": {"q_proj": 2, r"layers\.1\.mlp.up_proj": 7},
            "alpha_pattern": {"o_proj": 1},
        },
        {"init_lora_weights": "gaussian", "lora_dropout": 0.1},
    ],
    ids=lambda fields: ",".join(fields),
)
def test_what_a_config_may_say(tmp_path: Path, fields: dict[str, Any]) -> None:
    base = make_checkpoint(tmp_path / "base", "qwen3")
    folder = make_adapter(tmp_path / "adapter", base, **fields)
    model = load(base)
    found = logits(model, load_adapter(folder, model), tokens(40))
    assert (found - adapted_logits(base, folder, tokens(40))).abs().max() <= TOLERANCE


@pytest.mark.parametrize("start", ["model.language_model.", "language_model.model."])
def test_an_adapter_of_a_model_of_more_than_text(tmp_path: Path, start: str) -> None:
    """Its text's part is used; config and tensors have the whole model's names."""
    base = make_checkpoint(tmp_path / "base", "llama")
    folder = make_adapter(tmp_path / "adapter", base, targets=("q_proj", "down_proj"))
    model = load(base)
    expected = logits(model, load_adapter(folder, model), tokens(40))
    lead = "base_model.model."
    tensors = {
        name.replace(f"{lead}model.", f"{lead}{start}"): its
        for name, its in load_file(folder / WEIGHTS).items()
    }
    vision = f"{lead}model.vision_tower.encoder.layers.0.self_attn.q_proj.linear.lora_"
    tensors |= {f"{vision}A.weight": torch.ones(4, 8), f"{vision}B.weight": torch.ones(8, 4)}
    save_file(tensors, folder / WEIGHTS)
    edit(folder, target_modules=rf"{start}layers\.\d+\..*(q_proj|down_proj)")
    assert torch.equal(logits(model, load_adapter(folder, model), tokens(40)), expected)


def test_tokens_before_have_none(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base", "llama")
    model = load(base)
    adapter = load_adapter(make_adapter(tmp_path / "adapter", base), model)
    found = logits(model, adapter, tokens(40), start=30)
    plain = reference_logits(load_reference(base), tokens(40))
    assert (found[:30] - plain[:30]).abs().max() <= TOLERANCE
    assert (found[30:] - plain[30:]).abs().max() > 100 * TOLERANCE


@pytest.mark.parametrize("bits", [8, 4])
def test_quantized_weights_with_an_adapter_in_floats(tmp_path: Path, bits: int) -> None:
    base = make_checkpoint(tmp_path / "base", "llama")
    group = {"group": 32} if bits == 4 else {}
    model = load(base, choose=one_way, quantize=partial(quantize, bits=bits, **group))
    adapter = load_adapter(make_adapter(tmp_path / "adapter", base), model)
    alone = logits(model, adapter._replace(additions={}), tokens(40))
    found = logits(model, adapter, tokens(40))
    both = load(base)
    change = logits(both, load_adapter(tmp_path / "adapter", both), tokens(40))
    plain = reference_logits(load_reference(base), tokens(40))
    error, moved = (alone - plain).abs().mean(), (change - plain).abs().mean()
    assert (found - change).abs().mean() < 2 * error < moved


def test_the_digest_is_of_all_that_counts(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base", "llama")
    model = load(base)
    folders = [
        make_adapter(tmp_path / "a", base),
        make_adapter(tmp_path / "b", base),
        make_adapter(tmp_path / "c", base, seed=1),
        make_adapter(tmp_path / "d", base, lora_alpha=9),
    ]
    first, same, *others = (load_adapter(folder, model).digest for folder in folders)
    assert first == same
    assert len({first, *others}) == 3


def edit(folder: Path, **fields: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"peft_type": "LOHA"}, "'peft_type' is 'LOHA'"),
        ({"use_dora": True}, "'use_dora' is True"),
        ({"bias": "all"}, "'bias' is 'all'"),
        ({"lora_bias": True}, "'lora_bias' is True"),
        ({"modules_to_save": ["lm_head"]}, "'modules_to_save'"),
        ({"layers_to_transform": [1]}, "'layers_to_transform'"),
        ({"fan_in_fan_out": True}, "'fan_in_fan_out'"),
        ({"target_parameters": ["experts.weight"]}, "'target_parameters'"),
        ({"init_lora_weights": "pissa"}, "'init_lora_weights' is 'pissa'"),
        ({"something_new": {"a": 1}}, "'something_new'"),
        ({"r": 0}, "'r' is 0"),
        ({"r": "8"}, "'r' is '8'"),
        ({"lora_alpha": float("nan")}, "'lora_alpha' is nan"),
        ({"target_modules": None}, "'target_modules' is missing"),
        ({"target_modules": 3}, "'target_modules"),
        ({"target_modules": "(q_proj"}, "'(q_proj'"),
        ({"rank_pattern": {"(": 3}}, "'('"),
        ({"rank_pattern": {"q_proj": 0}}, "rank_pattern"),
    ],
)
def test_what_is_not_served_is_refused_by_name(
    tmp_path: Path, fields: dict[str, Any], said: str
) -> None:
    base = make_checkpoint(tmp_path / "base", "llama")
    folder = make_adapter(tmp_path / "adapter", base)
    edit(folder, **fields)
    with pytest.raises(UnsupportedModelError) as error:
        load_adapter(folder, load(base))
    assert said in str(error.value)
    assert "adapter_config.json" in str(error.value)


Q = "base_model.model.model.layers.0.self_attn.q_proj"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({f"{Q}.lora_A.weight": (4, 63)}, f"'{Q}.lora_A.weight' has shape (4, 63), wanted (4, 64)"),
        ({f"{Q}.lora_B.weight": (64, 3)}, f"'{Q}.lora_B.weight' has shape (64, 3), wanted (64, 4)"),
        ({f"{Q}.lora_B.weight": None}, f"lacks the tensor '{Q}.lora_B.weight'"),
        (
            {f"{Q}.lora_A.weight": None, f"{Q}.lora_B.weight": None},
            "lacks 'model.layers.0.self_attn.q_proj'",
        ),
        (
            {"base_model.model.model.layers.9.self_attn.q_proj.lora_A.weight": (4, 64)},
            "'model.layers.9.self_attn.q_proj', which the model has not",
        ),
        (
            {"base_model.model.lm_head.lora_A.weight": (4, 64)},
            "'lm_head', which is not supported",
        ),
        (
            {"base_model.model.model.embed_tokens.lora_embedding_A": (4, 320)},
            "'base_model.model.model.embed_tokens.lora_embedding_A' is no part",
        ),
        (
            {f"{Q}.lora_magnitude_vector": (64,)},
            "lora_magnitude_vector' is no part",
        ),
    ],
)
def test_tensors_that_do_not_fit(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    base = make_checkpoint(tmp_path / "base", "llama")
    folder = make_adapter(tmp_path / "adapter", base)
    tensors = load_file(folder / WEIGHTS)
    for name, shape in change.items():
        if shape is None:
            del tensors[name]
        else:
            tensors[name] = torch.zeros(shape)
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(ModelError) as error:
        load_adapter(folder, load(base))
    assert said in str(error.value)


def test_experts_are_refused_by_name(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base", "qwen3_moe")
    folder = make_adapter(tmp_path / "adapter", base, targets=ATTENTION)
    tensors = load_file(folder / WEIGHTS)
    tensors["base_model.model.model.layers.1.mlp.experts.3.up_proj.lora_A.weight"] = torch.ones(
        4, 64
    )
    save_file(tensors, folder / WEIGHTS)
    with pytest.raises(UnsupportedModelError, match=r"experts\.3\.up_proj.*not supported"):
        load_adapter(folder, load(base))


def test_files_that_can_not_be_read(tmp_path: Path) -> None:
    base = make_checkpoint(tmp_path / "base", "llama")
    model = load(base)
    with pytest.raises(CheckpointError, match="has no adapter_config"):
        load_adapter(base, model)
    folder = make_adapter(tmp_path / "adapter", base)
    whole = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(whole[:100])
    with pytest.raises(CheckpointError, match="truncated or not a safetensors file"):
        load_adapter(folder, model)
    (folder / WEIGHTS).unlink()
    with pytest.raises(CheckpointError, match=f"has no {WEIGHTS}"):
        load_adapter(folder, model)
    os.mkfifo(folder / WEIGHTS)
    with pytest.raises(CheckpointError, match=f"{WEIGHTS} cannot be read: it is not a regular"):
        load_adapter(folder, model)
    (folder / WEIGHTS).unlink()
    (folder / "adapter_model.bin").write_bytes(b"")
    with pytest.raises(CheckpointError, match=r"pickled weights.*save_pretrained"):
        load_adapter(folder, model)
