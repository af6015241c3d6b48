"""GGUF files of each family: config and logits are those of the folder with the same weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import MODEL_ARCH_NAMES
from torch import Tensor

from radixlm.core.errors import CheckpointError
from radixlm.formats.gguf_fields import FAMILIES
from radixlm.formats.gguf_file import GGUFFile
from radixlm.layers.step_states import StateRow, StepStates
from radixlm.memory.state_pool import StatePool
from radixlm.models import CausalLM, GGUFCheckpoint, load_config, load_model
from radixlm.models.families import ARCHITECTURES, TEXTS
from radixlm.models.model_config import ModelConfig
from radixlm.products.gemm_choice import Choose, one_way
from radixlm.testing.gguf_models import LARGE, Q4_K_M, TEXTS_LIKE, UNREAD, of_256, write_pair
from radixlm.testing.gguf_writer import write_gguf
from radixlm.testing.reference import load_reference, reference_logits
from tests.tensor.attention_cases import dense_for

TOKENS = torch.randint(0, 320, (40,), generator=torch.Generator().manual_seed(1))
# Names that files have for it.
SAID = {
    **dict.fromkeys(("mistral", "internlm3"), "llama"),
    **dict.fromkeys(("kimi_k2", "glm4_moe_lite"), "deepseek_v3"),
    "gemma4_unified_text": "gemma4_text",
    **dict.fromkeys(("qwen2_5_vl_text", "qwen2_5_omni_text"), "qwen2_vl_text"),
    "qwen3_omni_moe_text": "qwen3_vl_moe_text",
    "glm_ocr_text": "glm4v_text",
    "glm4v_moe_text": "glm4_moe",
    **dict.fromkeys(("granite4_vision_text", "granite_docling_text"), "granite"),
}
# A base that is stored in float32; factors in weights; a size of MLPs that is computed; experts in
# one tensor.
OTHERWISE = ("hunyuan_v1_dense", "falcon_h1", "lfm2", "qwen3_vl_moe_text")
FOUND = [
    *(name for name in ARCHITECTURES if name not in {*UNREAD, *TEXTS, "kimi_k2"}),
    *TEXTS_LIKE,
]
KINDS = ("F16", "Q8_0", "IQ4_NL")
# One type each at all times, the others too where time does not count.
PAIRS = [
    pytest.param(family, kind, marks=[] if at % 3 == number else pytest.mark.slow)
    for at, family in enumerate(FOUND)
    for number, kind in enumerate(KINDS)
]


def load(path: Path, choose: Choose | None = None) -> CausalLM:
    config, file = load_config(path), GGUFFile(path)
    return load_model(
        GGUFCheckpoint(file, config),
        config,
        dtype=torch.float32,
        device=torch.device("cpu"),
        choose=choose,
        progress=False,
    )


@torch.inference_mode()
def logits(model: CausalLM) -> Tensor:
    rows = torch.arange(len(TOKENS))
    pool = StatePool(model.config.state_shapes, 1, torch.float32)
    states = StepStates([StateRow(0, len(TOKENS), 0, 0)], pool.conv, pool.matrices)
    return model.forward(TOKENS, rows, dense_for(model), rows, states=states)


def check(folder: Path, path: Path) -> None:
    expected = reference_logits(load_reference(folder), TOKENS.tolist())
    found = logits(load(path))
    assert torch.allclose(found, expected, atol=2e-3, rtol=1e-3)
    assert torch.equal(found.argmax(1), expected.argmax(1))


def plain(config: ModelConfig) -> ModelConfig:
    """The config without what says the same in two ways, or nothing of the file."""
    traits = config.traits
    windows = traits.windows if any(traits.windows) else ()
    return replace(config, traits=traits._replace(windows=windows, spare_layers=0))


@pytest.mark.parametrize(("family", "kind"), PAIRS)
def test_each_family_is_what_transformers_makes_of_the_same_weights(
    tmp_path: Path, family: str, kind: str
) -> None:
    folder, path = write_pair(tmp_path, family, kind)
    wanted, made = plain(load_config(folder)), plain(load_config(path))
    if family not in OTHERWISE:
        assert made == replace(
            wanted,
            model_type=SAID.get(family, family),
            dtype=made.dtype,
            eos_token_ids=made.eos_token_ids,
        )
    check(folder, path)


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        *(("qwen3_moe", "Q4_K"), ("gemma3_text", "Q4_K"), ("phi3", "IQ4_XS")),
        *(("granitemoe", "Q2_K"), ("gpt_oss", "Q3_K")),
        *(
            pytest.param(family, ("Q4_K", "IQ4_XS")[at % 2], marks=pytest.mark.slow)
            for at, family in enumerate(FOUND)
        ),
    ],
)
def test_types_with_blocks_of_256(tmp_path: Path, family: str, kind: str) -> None:
    """Q4_K stands for llama.cpp's mixture, Q4_K_M."""
    kinds = Q4_K_M if kind == "Q4_K" else None
    check(*write_pair(tmp_path, family, kind, kinds=kinds, **of_256(family)))


def test_gpt_oss_as_it_is_published(tmp_path: Path) -> None:
    """Experts in MXFP4, all else as it is."""
    names = (f"ffn_{name}_exps.weight" for name in ("gate", "up", "down"))
    kinds = {f"blk.{layer}.{name}": "MXFP4" for name in names for layer in range(3)}
    folder, _ = write_pair(tmp_path, "gpt_oss", "F16", kinds=kinds, most_tensors=7)
    (first,) = tmp_path.glob("m-00001-of-*.gguf")
    check(folder, first)


@pytest.mark.parametrize("kind", ["Q2_K", "Q3_K", "IQ4_XS", "MXFP4"])
def test_packed_products_differ_by_rounding(tmp_path: Path, kind: str) -> None:
    folder, path = write_pair(tmp_path, "qwen3", kind, **LARGE)
    expected = reference_logits(load_reference(folder), TOKENS.tolist())
    assert (logits(load(path, one_way)) - expected).norm() < 0.05 * expected.norm()


def test_what_is_claimed_costs_nothing(tmp_path: Path) -> None:
    """Experts by layers, of which each is below what the file could hold, and numbers in names."""
    _, path = write_pair(tmp_path, "qwen3_moe", "F16", num_hidden_layers=1)
    file = gguf.GGUFWriter(tmp_path / "x.gguf", "qwen3moe")
    source = GGUFFile(path)
    for key, value in source.metadata.items():
        if type(value) is int and not key.startswith(("GGUF", "general", "split")):
            many = {"qwen3moe.block_count": 900, "qwen3moe.expert_count": 900}
            file.add_uint32(key, many.get(key, value))
    file.add_float32("qwen3moe.attention.layer_norm_rms_epsilon", 1e-6)
    file.add_array("tokenizer.ggml.tokens", source.metadata["tokenizer.ggml.tokens"])
    file.add_tensor("blk.0.x.weight", np.zeros((1000, 1, 1), np.float32))
    file.add_tensor(f"blk.{'9' * 5000}.x.weight", np.zeros(1, np.float32))
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    with pytest.raises(CheckpointError, match="asks for 810000 experts"):
        load(tmp_path / "x.gguf")


def test_each_family_has_a_row() -> None:
    rows = FAMILIES.values()
    served = {name for row in rows for name in (row.model_type, *row.instead.values())}
    assert set(ARCHITECTURES) <= served | SAID.keys() | UNREAD
    assert FAMILIES.keys() <= set(MODEL_ARCH_NAMES.values())


def test_layers_that_share_may_have_keys_and_values_of_their_own(tmp_path: Path) -> None:
    """As in folders: nothing reads them."""
    folder, path = write_pair(tmp_path, "gemma4_text", "F32")
    other = tmp_path / "other.gguf"
    shapes = {"attn_k": (32, 64), "attn_v": (32, 64), "attn_k_norm": (32,)}
    unused = {f"blk.5.{name}.weight": np.ones(its, np.float32) for name, its in shapes.items()}
    write_gguf(folder, other, "F32", tensors=unused)
    assert plain(load_config(other)) == plain(load_config(path))
    check(folder, other)


@pytest.mark.parametrize("family", ["phi3", "glm"])
def test_queries_keys_and_values_in_another_form(tmp_path: Path, family: str) -> None:
    """One tensor where transformers has three, and the other way around."""
    folder, path = write_pair(tmp_path, family, "F32")
    other = tmp_path / "other.gguf"
    file, sizes = GGUFFile(path), (64, 32, 32)
    tensors, parted = {}, {}
    for layer in range(3):
        names = [f"blk.{layer}.attn_{name}" for name in "qkv"]
        whole = f"blk.{layer}.attn_qkv"
        for end in ("weight", "bias"):
            if f"{whole}.{end}" in file.tensors:
                rows = file.data(f"{whole}.{end}").view("<f4").reshape(sum(sizes), -1)
                at = 0
                for name, size in zip(names, sizes, strict=True):
                    tensors[f"{name}.{end}"] = rows[at : at + size]
                    at += size
                parted[f"{whole}.{end}"] = None
            elif f"{names[0]}.{end}" in file.tensors:
                each = [torch.from_numpy(file.data(f"{name}.{end}").view("<f4")) for name in names]
                made = torch.cat(each)
                tensors[f"{whole}.{end}"] = (
                    made.view(sum(sizes), -1) if end == "weight" else made
                ).numpy()
                parted |= dict.fromkeys(f"{name}.{end}" for name in names)
    write_gguf(folder, other, "F32", tensors=tensors, without=parted)
    check(folder, other)
