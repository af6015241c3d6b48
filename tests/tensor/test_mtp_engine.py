"""Engines whose model's own files bring a layer that predicts a further token: what it drafts, and
that answers are those without it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from radixlm import Engine, SamplingParams
from radixlm.core.errors import ConfigError, ModelError
from radixlm.testing.reference import make_checkpoint
from tests.server_support import until
from tests.tensor.draft_steps import Steps
from tests.tensor.mtp_layers import (
    FAMILIES,
    LATENTS,
    PLACE,
    PlainMtp,
    Tensors,
    make_mtp_checkpoint,
    store,
    stored,
)

PROMPTS = [[2, 3, 4, 5] * 8, [2, 3, 4, 5] * 5 + [9, 8, 7], [*range(2, 30)], [7]]
GREEDY = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
DRAWN = SamplingParams(max_tokens=24, temperature=0.7, top_p=0.9, seed=3, ignore_eos=True)
FLAGS: dict[str, Any] = {"kv_tokens": 1_000, "dtype": "float32"}
MTP: dict[str, Any] = {"speculative_algorithm": "mtp"}


def as_published(_tensors: Tensors) -> None:
    pass


def without_copies(tensors: Tensors) -> None:
    del tensors[f"{PLACE}.embed_tokens.weight"], tensors[f"{PLACE}.shared_head.head.weight"]


def with_its_own(tensors: Tensors) -> None:
    for name in ("embed_tokens", "shared_head.head"):
        tensors[f"{PLACE}.{name}.weight"] = tensors[f"{PLACE}.{name}.weight"].flip(0)


@pytest.mark.usefixtures("always")
@pytest.mark.parametrize(
    ("family", "change"),
    [
        *((family, as_published) for family in FAMILIES),
        ("glm4_moe", without_copies),
        ("deepseek_v3", with_its_own),
    ],
)
def test_drafts_are_those_of_a_plain_computation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, change: Callable[[Tensors], None]
) -> None:
    """Also after prefixes that others have computed, of which rows are shared, in chunks, and after
    wrong drafts.
    """
    folder = make_mtp_checkpoint(tmp_path, family)
    change(tensors := stored(folder))
    store(folder, tensors)
    steps = Steps(monkeypatch)
    with Engine(str(folder), **MTP, **FLAGS, chunked_prefill_size=16) as engine:
        for prompt in PROMPTS:
            engine.generate([prompt, [*prompt, 11, 12]], GREEDY)
    plain, drafts = PlainMtp(folder), steps.drafts()
    assert len(drafts) > 60
    assert [plain.drafts(known, len(its)) for known, its in drafts] == [[*its] for _, its in drafts]


CASES = [
    *((family, {}) for family in FAMILIES),
    *((family, {"kv_tokens": 120}) for family in (*LATENTS, "glm4_moe", "qwen3_5_text")),
    ("qwen3_next", {"max_mamba_cache_size": 9}),
    ("qwen3_5_moe_text", {"page_size": 4, "chunked_prefill_size": 16}),
    ("qwen3_5_text", {"dtype": "bfloat16", "deterministic": True}),
    ("deepseek_v3", {"page_size": 4, "chunked_prefill_size": 16}),
    ("deepseek_v3", {"kv_tokens": 120, "host_kv_tokens": 1_000, "disk_block_tokens": 8}),
    ("deepseek_v3", {"schedule_policy": "priority", "max_running_requests": 2}),
    ("glm4_moe", {"quantization": "int8"}),
    ("glm4_moe", {"kv_cache_dtype": "int8"}),
    ("glm4_moe", {"dtype": "bfloat16", "deterministic": True}),
]


@pytest.mark.parametrize(("family", "flags"), CASES, ids=str)
@pytest.mark.usefixtures("checked_steps", "always")
def test_the_same_answers(tmp_path: Path, family: str, flags: dict[str, Any]) -> None:
    """Cold, and warm."""
    folder, told = make_mtp_checkpoint(tmp_path, family), []
    for more in ({}, MTP):
        with Engine(str(folder), **{**FLAGS, **flags, **more}) as engine:
            made = [engine.generate(PROMPTS, its) for its in (GREEDY, DRAWN, GREEDY)]
            told.append([output.token_ids for outputs in made for output in outputs])
            stats = engine.stats()
    assert told[0] == told[1]
    assert stats.accepted_of["mtp"][0] > 40
    assert flags.get("kv_tokens") != 120 or stats.retractions > 0


@pytest.mark.usefixtures("always", "always_read")
@pytest.mark.parametrize("family", ["deepseek_v3", "glm4_moe", "qwen3_5_text"])
def test_rows_come_back_from_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """The layer's too: what is drafted after them is as it was."""
    folder = make_mtp_checkpoint(tmp_path / "model", family)
    flags = {**FLAGS, **MTP, "disk_cache": str(tmp_path / "disk"), "disk_block_tokens": 8}
    prompt = [2 + number * 7 % 60 for number in range(41)]
    with Engine(str(folder), **flags, disk_write_policy="all") as engine:
        wanted = engine.generate(prompt, GREEDY)[0].token_ids
        assert until(lambda: engine.stats().disk_tokens >= 40)
    steps = Steps(monkeypatch)
    with Engine(str(folder), **flags, disk_write_policy="off") as engine:
        assert until(lambda: engine.stats().disk_tokens >= 40)
        read = engine.generate(prompt, GREEDY)[0]
    assert (read.token_ids, read.cached_tokens) == (wanted, 40)
    plain, drafts = PlainMtp(folder), steps.drafts()
    assert drafts
    assert [plain.drafts(known, len(its)) for known, its in drafts] == [[*its] for _, its in drafts]


@pytest.mark.usefixtures("always")
def test_a_layer_that_is_right_is_right_in_steps(tmp_path: Path) -> None:
    """A model whose layers add nothing looks at the last token alone, as its layer then does, too:
    all that it drafts is what comes.
    """
    folder = make_mtp_checkpoint(tmp_path, "glm4_moe")
    tensors = stored(folder)
    for name, its in tensors.items():
        if name.endswith(("o_proj.weight", "down_proj.weight")):
            its.zero_()
    size = tensors["model.norm.weight"].numel()
    tensors[f"{PLACE}.eh_proj.weight"] = torch.eye(size, 2 * size)
    tensors[f"{PLACE}.enorm.weight"].fill_(1)
    tensors[f"{PLACE}.shared_head.norm.weight"] = tensors["model.norm.weight"].clone()
    store(folder, tensors)
    prompts = [[token] for token in range(2, 40)]
    told = []
    for more in ({}, MTP):
        with Engine(str(folder), **FLAGS, **more) as engine:
            told.append([each.token_ids for each in engine.generate(prompts[:4], GREEDY)])
            accepted = engine.stats().accepted_of
    assert told[0] == told[1]
    drafted, right = accepted["mtp"]
    assert drafted == right > 0


@pytest.mark.parametrize(
    ("family", "name", "shape", "said"),
    [
        ("qwen3_5_text", "mtp.fc", None, "lacks 1 tensor: mtp.fc.weight"),
        ("qwen3_next", "mtp.norm", (3,), "'mtp.norm.weight' has shape"),
        ("qwen3_next", "mtp.layers.0.self_attn.k_norm", None, "mtp.layers.0.self_attn.k_norm.wei"),
        ("deepseek_v3", f"{PLACE}.eh_proj", None, "lacks 1 tensor: model.layers.3.eh_proj.weight"),
        (
            "deepseek_v3",
            f"{PLACE}.mlp.experts.5.up_proj",
            None,
            "lacks 1 tensor: .*3.mlp.experts.5.up_proj.weight",
        ),
        (
            "deepseek_v3",
            f"{PLACE}.shared_head.norm",
            (3,),
            "'model.layers.3.shared_head.norm.weight' has shape",
        ),
        (
            "deepseek_v3",
            f"{PLACE}.self_attn.o_proj",
            (64, 3),
            "'model.layers.3.self_attn.o_proj.weight' has shape",
        ),
        (
            "deepseek_v3",
            f"{PLACE}.self_attn.more",
            (3,),
            "holds 1 tensor: model.layers.3.self_attn.more.weight",
        ),
    ],
)
def test_a_tensor_that_does_not_fit_is_named(
    tmp_path: Path, family: str, name: str, shape: tuple[int, ...] | None, said: str
) -> None:
    folder = make_mtp_checkpoint(tmp_path, family)
    tensors = stored(folder)
    tensors.pop(f"{name}.weight", None)
    if shape is not None:
        tensors[f"{name}.weight"] = torch.ones(shape)
    store(folder, tensors)
    with Engine(str(folder), **FLAGS):
        pass  # without it nobody asks
    with pytest.raises(ModelError, match=said):
        Engine(str(folder), **FLAGS, **MTP)


@pytest.mark.parametrize(
    ("family", "flags", "said"),
    [
        ("llama", {}, "knows no layer of llama that predicts a further token"),
        ("deepseek_v3", {}, r"holds no tensor model\.layers\.3\.\*"),
        ("deepseek_v3", {"tp_size": 2}, "does not go with --tp-size 2"),
        ("glm_moe_dsa", {}, "does not know the index of glm_moe_dsa"),
        ("qwen3_next", {}, r"holds no tensor mtp\.\*"),
        ("lfm2", {}, "knows no layer of lfm2"),
        ("llama", {"model_impl": "transformers"}, "knows no layer of llama"),
        ("llama", {"speculative_draft_model_path": "x"}, "has no use without"),
    ],
)
def test_what_has_no_such_layer_is_refused(
    tmp_path: Path, family: str, flags: dict[str, Any], said: str
) -> None:
    folder = make_checkpoint(tmp_path, family)
    with pytest.raises(ConfigError, match=said):
        Engine(str(folder), **FLAGS, **MTP, **flags)
