"""Our models against transformers: tiny random checkpoints, float32, logits within 1e-4."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from radixlm.models import CausalLM, PlainCheckpoint, load_config, load_model
from radixlm.testing.reference import (
    ARCHITECTURES,
    load_reference,
    make_checkpoint,
    reference_logits,
)
from tests.tensor.attention_cases import DenseAttend, dense_for

CPU = torch.device("cpu")
TOLERANCE = 1e-4
# One of each kind; the others are left out of `make check`.
QUICK = ("llama", "qwen3", "cohere2", "mixtral")


def load(folder: Path, dtype: torch.dtype = torch.float32) -> CausalLM:
    checkpoint = PlainCheckpoint(folder)
    return load_model(checkpoint, load_config(folder), dtype=dtype, device=CPU, progress=False)


@torch.inference_mode()
def logits(model: CausalLM, token_ids: list[int], first_position: int = 0) -> Tensor:
    rows = torch.arange(len(token_ids))
    return model.forward(torch.tensor(token_ids), rows + first_position, dense_for(model), rows)


def tokens(n: int) -> list[int]:
    return torch.randint(0, 320, (n,), generator=torch.Generator().manual_seed(1)).tolist()


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        ("llama", {"num_key_value_heads": 1, "attention_bias": True, "mlp_bias": True}),
        ("llama", {"num_key_value_heads": 4, "head_dim": 32, "tie_word_embeddings": True}),
        ("llama", {"rms_norm_eps": 1e-2}),
        ("mistral", {"head_dim": 32, "sliding_window": 2048}),
        ("qwen2", {"tie_word_embeddings": True}),
        *(
            pytest.param(name, {}, marks=[] if name in QUICK else pytest.mark.slow)
            for name in ARCHITECTURES
        ),
        ("qwen3", {"head_dim": 32, "attention_bias": True, "tie_word_embeddings": True}),
        ("exaone4", {"sliding_window": None, "layer_types": ["full_attention"] * 3}),
        ("glm4_moe", {"use_qk_norm": False, "n_group": 1, "topk_group": 1}),
        ("llama4_text", {"use_qk_norm": False, "attn_temperature_tuning": False}),
        ("deepseek_v2", {"q_lora_rank": None, "topk_method": "greedy", "n_group": None}),
        ("deepseek_v3", {"attention_bias": True, "rope_interleave": False}),
        ("deepseek_v3", {"norm_topk_prob": False, "n_shared_experts": 2, "topk_group": 4}),
        ("deepseek_v3", {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0}}),
        ("glm_moe_dsa", {"indexer_types": ["full"] * 3, "index_head_dim": 8, "index_topk": 500}),
        ("glm_moe_dsa", {"indexer_types": None, "index_topk_freq": 2}),
        ("axk2", {"n_group": 4, "topk_group": 2}),
    ],
)
def test_logits_equal_transformers(
    tmp_path: Path, architecture: str, overrides: dict[str, Any]
) -> None:
    folder = make_checkpoint(tmp_path, architecture, **overrides)
    token_ids = tokens(150)
    expected = reference_logits(load_reference(folder), token_ids)
    found = logits(load(folder), token_ids)
    assert found.dtype == torch.float32
    assert (found - expected).abs().max() <= TOLERANCE
    assert expected.argmax(-1).unique().numel() > 20, "the reference says the same all the time"


@pytest.mark.parametrize(
    ("rope", "first_position"),
    [
        ({"rope_type": "default", "rope_theta": 500_000.0}, 1800),
        pytest.param({"rope_type": "linear", "factor": 4.0}, 8000, marks=pytest.mark.slow),
        pytest.param({"rope_type": "dynamic", "factor": 4.0}, 1850, marks=pytest.mark.slow),
        (
            {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 256,
            },
            1800,
        ),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512}, 1800),
        (
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 512,
                "beta_fast": 16.0,
                "beta_slow": 2.0,
                "attention_factor": 1.3,
                "truncate": False,
            },
            1800,
        ),
        (
            {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 512,
                "mscale": 1.0,
                "mscale_all_dim": 0.5,
            },
            1800,
        ),
    ],
    ids=lambda value: value.get("rope_type") if isinstance(value, dict) else str(value),
)
def test_rope_scaling_equals_transformers(
    tmp_path: Path, rope: dict[str, Any], first_position: int
) -> None:
    rope = {"rope_theta": 10_000.0} | rope
    folder = make_checkpoint(tmp_path, "llama", head_dim=64, rope_parameters=rope)
    model, reference = load(folder), load_reference(folder)
    for first in (0, first_position):
        token_ids = tokens(190)
        expected = reference_logits(reference, token_ids, first)
        assert (logits(model, token_ids, first) - expected).abs().max() <= TOLERANCE


def test_one_long_sequence_past_the_original_length(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 256}
    rope |= {"rope_theta": 10_000.0}
    folder = make_checkpoint(tmp_path, "qwen3", rope_parameters=rope, max_position_embeddings=1024)
    token_ids = tokens(1000)
    expected = reference_logits(load_reference(folder), token_ids)
    assert (logits(load(folder), token_ids) - expected).abs().max() <= TOLERANCE


def test_logits_only_for_the_rows_asked_for(tmp_path: Path) -> None:
    model = load(make_checkpoint(tmp_path, "qwen3"))
    token_ids = tokens(20)
    everything = logits(model, token_ids)
    rows = torch.tensor([19, 3, 3])
    with torch.inference_mode():
        some = model.forward(
            torch.tensor(token_ids), torch.arange(20), DenseAttend(model.config.n_kv_heads), rows
        )
        none = model.forward(
            torch.tensor(token_ids),
            torch.arange(20),
            DenseAttend(model.config.n_kv_heads),
            rows[:0],
        )
    torch.testing.assert_close(some, everything[rows])
    assert none.shape == (0, 320)


def test_bfloat16_stays_close(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "llama", initializer_range=0.1)
    token_ids = tokens(50)
    wide, narrow = (
        logits(load(folder, dtype), token_ids) for dtype in (torch.float32, torch.bfloat16)
    )
    assert narrow.dtype == torch.float32
    assert (wide - narrow).abs().mean() < 0.05 * wide.std()
