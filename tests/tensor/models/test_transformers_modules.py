"""Which of transformers' norms are replaced by ours: those that give the same, and no others."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import NoReturn

import pytest
import torch
from torch import nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from radixlm.core.errors import UnsupportedModelError
from radixlm.models.transformers_modules import replace_modules
from radixlm.products.gemm_choice import one_way
from radixlm.testing.reference import load_reference, make_checkpoint, reference_logits


@pytest.mark.parametrize(
    ("architecture", "norm", "left"),
    [
        ("llama", "LlamaRMSNorm", 0),
        ("qwen3", "Qwen3RMSNorm", 0),
        ("gemma", "GemmaRMSNorm", 7),  # times its weight plus one
        ("cohere", "CohereLayerNorm", 4),  # of what is left without the mean
        ("gpt_neox", "LayerNorm", 7),
    ],
)
@torch.inference_mode()
def test_norms_that_give_what_ours_gives(
    tmp_path: Path, architecture: str, norm: str, left: int
) -> None:
    model = load_reference(make_checkpoint(tmp_path, architecture))
    token_ids = list(range(40))
    wanted = reference_logits(model, token_ids)
    kinds = [type(module).__name__ for module in model.modules()]
    assert norm in kinds
    replace_modules(model, one_way)
    kinds = [type(module).__name__ for module in model.modules()]
    assert kinds.count(norm) == left
    assert "Linear" not in kinds
    torch.testing.assert_close(reference_logits(model, token_ids), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("kept", "given"), [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)]
)
@torch.inference_mode()
def test_rows_of_another_type_than_the_weight(kept: torch.dtype, given: torch.dtype) -> None:
    norm = LlamaRMSNorm(64).to(kept)
    holder = nn.Sequential(norm)
    replace_modules(holder, one_way)
    assert holder[0] is not norm
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(0)).to(given)
    made = holder(x)
    assert made.dtype == given
    torch.testing.assert_close(made.float(), norm(x).float(), atol=0.05, rtol=0.02)


def test_a_module_without_source_code_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def without(_kind: object) -> NoReturn:
        raise OSError("could not get source code")

    monkeypatch.setattr(inspect, "getsource", without)
    with pytest.raises(UnsupportedModelError, match="the source code of its Sequential is not"):
        replace_modules(nn.Sequential(nn.Linear(4, 4)), one_way)
