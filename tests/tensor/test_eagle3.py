"""Engines with an EAGLE-3 head: what it drafts, and that answers are those without it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from radixlm import Engine, Namespace, SamplingParams
from radixlm.attention.growing import GrowingContexts
from radixlm.core.errors import ConfigError, ModelError
from radixlm.testing.peft_adapters import make_adapter
from radixlm.testing.reference import make_checkpoint
from tests.tensor.draft_steps import Steps
from tests.tensor.eagle3_heads import TAKEN, PlainHead, make_head

PROMPTS = [[2, 3, 4, 5] * 8, [2, 3, 4, 5] * 5 + [9, 8, 7], [*range(2, 30)], [7]]
GREEDY = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
DRAWN = SamplingParams(max_tokens=24, temperature=0.7, top_p=0.9, seed=3, ignore_eos=True)
FLAGS: dict[str, Any] = {"kv_tokens": 1_000, "dtype": "float32"}


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("grows", [True, False], ids=["planned once", "planned anew"])
def test_drafts_are_those_of_a_plain_computation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, grows: bool
) -> None:
    """Also after prefixes that others have computed, of which rows are shared, in chunks, and after
    wrong drafts.
    """
    folder = make_checkpoint(tmp_path / "model", "llama")
    head = make_head(tmp_path / "head", folder)
    steps = Steps(monkeypatch)
    monkeypatch.setattr(GrowingContexts, "known", lambda *_: grows)
    flags = {"speculative_draft_model_path": str(head), "chunked_prefill_size": 16, **FLAGS}
    with Engine(str(folder), speculative_algorithm="eagle3", **flags) as engine:
        for prompt in PROMPTS:
            engine.generate([prompt, [*prompt, 11, 12]], GREEDY)
    model: Any = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    plain = PlainHead(head, model.get_input_embeddings().weight.detach())
    drafts = steps.drafts()
    assert len(drafts) > 60
    right = 0
    for known, drafted in drafts:
        with torch.inference_mode():
            out = model(torch.tensor([known[:-1]]), output_hidden_states=True)
            states = [out.hidden_states[layer + 1][0] for layer in TAKEN[:2]]
            # What transformers has of the last layer is normed.
            states.append(_last_state(model, known[:-1]))
        right += plain.drafts(known, states, len(drafted)) == list(drafted)
    assert right == len(drafts)


def _last_state(model: Any, tokens: list[int]) -> torch.Tensor:
    kept: list[torch.Tensor] = []
    hook = model.model.norm.register_forward_pre_hook(lambda _, given: kept.append(given[0]))
    model(torch.tensor([tokens]))
    hook.remove()
    return kept[0][0]


CASES = [
    ("llama", {}),
    ("llama", {"page_size": 4}),
    ("llama", {"quantization": "int8"}),
    ("llama", {"kv_cache_dtype": "int8"}),
    ("llama", {"dtype": "bfloat16", "deterministic": True}),
    ("llama", {"kv_tokens": 120}),
    ("llama", {"kv_tokens": 120, "host_kv_tokens": 1_000, "disk_block_tokens": 8}),
    ("llama", {"schedule_policy": "priority", "max_running_requests": 2}),
    ("gemma3_text", {"swa_full_tokens_ratio": 0.2}),
    ("mixtral", {}),
    ("qwen3_5_text", {}),
]


@pytest.mark.parametrize(("family", "flags"), CASES, ids=str)
@pytest.mark.usefixtures("checked_steps", "always")
def test_the_same_answers(tmp_path: Path, family: str, flags: dict[str, Any]) -> None:
    folder = make_checkpoint(tmp_path / "model", family)
    head, told = make_head(tmp_path / "head", folder), []
    for more in (
        {},
        {"speculative_algorithm": "eagle3", "speculative_draft_model_path": str(head)},
    ):
        with Engine(str(folder), **{**FLAGS, **flags, **more}) as engine:
            told.append(
                [o.token_ids for its in (GREEDY, DRAWN) for o in engine.generate(PROMPTS, its)]
            )
            drafted = engine.stats().accepted_of.get("eagle3", (0, 0))[0]
    assert told[0] == told[1]
    assert drafted > 40


@pytest.mark.usefixtures("always")
def test_adapters_go_along(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "model", "llama")
    head, told = make_head(tmp_path / "head", folder), []
    adapter = f"one={make_adapter(tmp_path / 'one', folder)}"
    for more in (
        {},
        {"speculative_algorithm": "eagle3", "speculative_draft_model_path": str(head)},
    ):
        with Engine(str(folder), lora_paths=(adapter,), **FLAGS, **more) as engine:
            made = engine.generate(PROMPTS, GREEDY, lora_path="one")
            told.append([o.token_ids for o in made + engine.generate(PROMPTS, GREEDY)])
    assert told[0] == told[1]
    assert told[0][: len(PROMPTS)] != told[0][len(PROMPTS) :]


@pytest.mark.usefixtures("always")
def test_the_demo_model_has_a_head() -> None:
    """Which is right for tokens on end, also in texts that nobody has written yet."""
    text = "<|bos|><|user|>{}<|eos|><|assistant|>"
    asked = ["Tell me a story about a dog.", "What is the capital of France?", "Count from 3 to 20"]
    told = []
    for algorithm in ("off", "eagle3"):
        with Engine(speculative_algorithm=algorithm) as engine:
            params = SamplingParams(temperature=0, max_tokens=100)
            made = [
                engine.generate(text.format(each), params, namespace=Namespace(cache_salt=salt))[0]
                for salt in "abcd"
                for each in asked
            ]
            told.append([output.token_ids for output in made])
            accepted = engine.stats().accepted_of
    assert told[0] == told[1]
    drafted, right = accepted["eagle3"]
    assert drafted > 40
    assert right > drafted / 3


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize("requests", [1, 3])
def test_few_requests_have_drafts_as_long(tmp_path: Path, requests: int) -> None:
    folder = make_checkpoint(tmp_path / "model", "llama")
    head = make_head(tmp_path / "head", folder)
    flags = {"speculative_algorithm": "eagle3", "speculative_draft_model_path": str(head)}
    flags |= {"max_running_requests": requests, "speculative_num_draft_tokens": 5}
    with Engine(str(folder), **FLAGS, **flags) as engine:
        engine.generate(PROMPTS[0], replace(GREEDY, max_tokens=7))
        # After the prompt one step has five, if none is right; the last ones have fewer.
        assert engine.stats().accepted_of["eagle3"][0] >= 5 + 4


def changed(head: Path, name: str, value: Any) -> None:
    """Change a field of its config, or a tensor; None: take it away."""
    if name[:1].isupper():
        name = name.lower()
        tensors = load_file(head / "model.safetensors")
        tensors.pop(name, None)
        save_file(
            tensors if value is None else {**tensors, name: value}, head / "model.safetensors"
        )
    else:
        config = json.loads((head / "config.json").read_text())
        (head / "config.json").write_text(json.dumps({**config, name: value}))


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("architectures", ["LlamaForCausalLM"], "LlamaForCausalLMEagle3"),
        ("num_hidden_layers", 2, "1, in a draft head"),
        ("norm_before_residual", True, "norm_before_residual"),
        ("vocab_size", 321, "for another model: its config field 'vocab_size'"),
        ("target_hidden_size", 128, "for another model: its config field 'target_hidden_size'"),
        ("eagle_config", {"eagle_aux_hidden_state_layer_ids": [0, 1, 3]}, "for another model"),
        ("eagle_config", {"eagle_aux_hidden_state_layer_ids": [1, 0, 2]}, "rising numbers"),
        ("eagle_config", {"eagle_aux_hidden_state_layer_ids": [1]}, "3 numbers of layers"),
        ("intermediate_size", 2_000_000_000, "of the draft head is"),
        ("head_dim", 2_000_000_000, "of the draft head is"),
        ("draft_vocab_size", 150, "'lm_head.weight' of the draft head is F32 of shape"),
        ("Fc.weight", None, "lacks 1 tensor: fc.weight"),
        ("D2t", None, "lacks 1 tensor: d2t"),
        ("Midlayer.more", torch.zeros(1), "holds 1 tensor: midlayer.more"),
        ("T2d", torch.zeros(320, dtype=torch.bool), "name different tokens"),
        ("D2t", torch.zeros(200), "'d2t' of the draft head is F32"),
    ],
)
def test_a_head_that_does_not_go_is_refused(
    tmp_path: Path, name: str, value: Any, said: str
) -> None:
    folder = make_checkpoint(tmp_path / "model", "llama")
    head = make_head(tmp_path / "head", folder)
    changed(head, name, value)
    flags = {"speculative_algorithm": "eagle3", "speculative_draft_model_path": str(head)}
    with pytest.raises((ConfigError, ModelError), match=said):
        Engine(str(folder), **FLAGS, **flags)


@pytest.mark.parametrize(
    ("family", "flags", "said"),
    [
        ("llama", {}, "needs a head: --speculative-draft-model-path"),
        ("llama", {"tp_size": 2}, "does not go with --tp-size 2"),
        ("deepseek_v3", {}, "does not know the latents of deepseek_v3"),
    ],
)
def test_what_has_no_head_is_refused(
    tmp_path: Path, family: str, flags: dict[str, Any], said: str
) -> None:
    folder = make_checkpoint(tmp_path, family)
    with pytest.raises(ConfigError, match=said):
        Engine(str(folder), speculative_algorithm="eagle3", **FLAGS, **flags)
