"""Random adapters in PEFT's format: those that peft writes and runs, the reference for our own."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import peft
import torch
from torch import Tensor
from transformers import PreTrainedModel

from radixlm.testing.reference import load_reference, reference_logits

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
ALL = (*ATTENTION, "gate_proj", "up_proj", "down_proj")


def make_adapter(
    folder: Path, base: Path, *, seed: int = 0, targets: Sequence[str] | str = ALL, **fields: Any
) -> Path:
    """Write an adapter for the model in `base`; `fields` are of peft's LoraConfig. It says other
    things than the model. Returns the folder.
    """
    named = targets if isinstance(targets, str) else list(targets)
    config = peft.LoraConfig(**({"r": 4, "lora_alpha": 8} | fields), target_modules=named)
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it looks for the base's config on the Hub
        torch.manual_seed(seed)
        model = peft.get_peft_model(load_reference(base), config)
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                torch.nn.init.normal_(parameter, 0.0, 0.15)
        model.save_pretrained(str(folder), safe_serialization=True)
    return folder


def adapted_logits(base: Path, adapter: Path, token_ids: Sequence[int]) -> Tensor:
    """(tokens, vocab_size) logits by peft."""
    return reference_logits(_adapted(base, adapter), token_ids)


def adapted_tokens(
    base: Path, adapter: Path | None, prompts: Sequence[Sequence[int]], count: int
) -> list[list[int]]:
    """Greedy answers of `count` tokens by peft, or by the model alone."""
    model = load_reference(base) if adapter is None else _adapted(base, adapter)
    answers = []
    for prompt in prompts:
        ids = list(prompt)
        for _ in range(count):
            ids.append(int(reference_logits(model, ids)[-1].argmax()))
        answers.append(ids[len(prompt) :])
    return answers


def _adapted(base: Path, adapter: Path) -> PreTrainedModel:
    """The model with the adapter in it, as peft makes it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = peft.PeftModel.from_pretrained(load_reference(base), adapter).eval()
    return cast("PreTrainedModel", made.get_base_model())
