"""Models that carry states against transformers: logits of prompts at once, and in parts."""

from __future__ import annotations

from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from radixlm.layers.step_states import StateRow, StepStates
from radixlm.memory.state_pool import StatePool
from radixlm.models import CausalLM, PlainCheckpoint, load_config, load_model
from radixlm.testing.hybrids import HYBRIDS
from radixlm.testing.reference import load_reference, make_checkpoint, reference_logits
from tests.tensor.attention_cases import dense_for

CPU = torch.device("cpu")
# Scans add up in another order than transformers', over 150 tokens and logits of up to 15.
TOLERANCE = 5e-4
TOKENS = torch.randint(0, 320, (150,), generator=torch.Generator().manual_seed(1))
QUICK = ("qwen3_5_text",)


def load(folder: Path) -> CausalLM:
    checkpoint, config = PlainCheckpoint(folder), load_config(folder)
    return load_model(checkpoint, config, dtype=torch.float32, device=CPU, progress=False)


@torch.inference_mode()
def logits(model: CausalLM, token_ids: Tensor = TOKENS) -> Tensor:
    rows = torch.arange(token_ids.numel())
    pool = StatePool(model.config.state_shapes, 1, torch.float32)
    states = StepStates([StateRow(0, rows.numel(), 0, 0)], pool.conv, pool.matrices)
    return model.forward(token_ids, rows, dense_for(model), rows, states=states)


@pytest.mark.parametrize(
    ("architecture", "overrides"),
    [
        *(
            pytest.param(name, {}, marks=[] if name in QUICK else pytest.mark.slow)
            for name in HYBRIDS
        ),
        ("qwen3_next", {"mlp_only_layers": [0, 1, 2], "linear_num_value_heads": 2}),
        ("qwen3_5_text", {"linear_conv_kernel_dim": 2, "attention_bias": True}),
        ("qwen3_5_text", {"layer_types": None, "num_hidden_layers": 4}),
        ("falcon_h1", {"mamba_rms_norm": False}),
        ("falcon_h1", {"mamba_norm_before_gate": False, "mlp_bias": True}),
        ("lfm2", {"conv_bias": True, "block_auto_adjust_ff_dim": False}),
        ("bamba", {"mamba_proj_bias": True, "mamba_conv_bias": False, "mamba_n_groups": 1}),
        ("granitemoehybrid", {"num_local_experts": 0, "position_embedding_type": "rope"}),
    ],
)
def test_logits_equal_transformers(
    tmp_path: Path, architecture: str, overrides: dict[str, Any]
) -> None:
    folder = make_checkpoint(tmp_path, architecture, **overrides)
    expected = reference_logits(load_reference(folder), TOKENS.tolist())
    assert (logits(load(folder)) - expected).abs().max() <= TOLERANCE
    assert expected.argmax(-1).unique().numel() > 20, "the reference says the same all the time"


@pytest.mark.parametrize("architecture", HYBRIDS)
@torch.inference_mode()
def test_a_layer_goes_on_from_its_state(tmp_path: Path, architecture: str) -> None:
    """Two prompts side by side, by several tokens and by one, are as each alone at once."""
    model = load(make_checkpoint(tmp_path, architecture))
    [layer] = [each.state for each in model.layers if each.state is not None][:1]
    x = torch.randn(2, 80, 64, generator=torch.Generator().manual_seed(2))

    def states(pool: StatePool, *rows: StateRow) -> StepStates:
        return StepStates(rows, pool.conv, pool.matrices)

    def fresh() -> StatePool:
        return StatePool(model.config.state_shapes, 3, torch.float32)

    def multiply(linear: Any, given: Tensor, out: Tensor | None) -> Tensor:
        return linear(given, out)

    whole = [layer(its, states(fresh(), StateRow(0, 80, 0, 1)), multiply) for its in x]
    pool, made = fresh(), []
    for at, stop in pairwise(accumulate((0, 70, 1, 1, 3, 5))):
        count = stop - at
        rows = StateRow(0, count, at, 2), StateRow(count, 2 * count, at, 0)
        given = torch.cat([its[at:stop] for its in x])
        made.append(layer(given, states(pool, *rows), multiply).unflatten(0, (2, count)))
    assert (torch.cat(made, dim=1) - torch.stack(whole)).abs().max() < 1e-4


def test_experts_in_one_tensor_or_each_by_itself(tmp_path: Path) -> None:
    """Publishers write the first, transformers the second."""
    folder = make_checkpoint(tmp_path, "qwen3_5_moe_text")
    expected, file = logits(load(folder)), folder / "model.safetensors"
    weights = load_file(file)
    for layer in range(3):
        place = f"model.layers.{layer}.mlp.experts."
        each = [
            [weights.pop(f"{place}{n}.{name}_proj.weight") for name in ("gate", "up", "down")]
            for n in range(6)
        ]
        weights[f"{place}gate_up_proj"] = torch.stack([torch.cat(its[:2]) for its in each])
        weights[f"{place}down_proj"] = torch.stack([its[2] for its in each])
    save_file(weights, file, metadata={"format": "pt"})
    assert torch.equal(logits(load(folder)), expected)
