"""Engines with drafts give the same answers as without."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from radixlm import Engine, SamplingParams
from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.core.grammar import Grammar
from radixlm.core.request import RequestOutput
from radixlm.drafts.draft import Draft, Sibling
from radixlm.drafts.tree_drafts import TreeDrafts
from radixlm.runner.model_runner import ModelRunner
from radixlm.testing.peft_adapters import make_adapter
from radixlm.testing.reference import make_checkpoint

PROMPTS = [[2, 3, 4, 5] * 8, [*range(2, 30), 50, 51, *range(2, 20)], [7, 8, 9] * 5]
GREEDY = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True)
# Penalties, bias and stops depend on all tokens before.
ADJUSTED = SamplingParams(
    max_tokens=24,
    temperature=0.3,
    seed=3,
    min_tokens=6,
    stop_token_ids=(5, 11),
    frequency_penalty=-0.6,
    presence_penalty=0.2,
    repetition_penalty=1.05,
    logit_bias={7: 1.5, 9: -1.0},
    ignore_eos=True,
)
DRAWN = [
    SamplingParams(max_tokens=24, temperature=0.2, top_p=0.9, seed=seed, ignore_eos=True)
    for seed in range(3)
]
SCORED = SamplingParams(
    max_tokens=24, temperature=0, logprobs=2, prompt_logprobs=0, ignore_eos=True
)
FORM = Grammar.json_schema({"enum": [{"name": "a", "size": 1}, {"name": "b", "size": 22}, [1]]})
FORMED = SamplingParams(max_tokens=40, temperature=1.5, seed=5, logprobs=1, grammar=FORM)


class Oracle:
    """Drafts what was answered before, every third token of it wrong in some drafts, which siblings
    know better; and counts the tokens that steps saved, and the siblings that were right.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.saved = self.siblings = 0
        self.texts: list[list[int]] = []
        execute = ModelRunner.execute

        def counted(runner: ModelRunner, batch: ScheduledBatch) -> StepResult:
            result = execute(runner, batch)
            self.saved += sum(map(len, result.more.values()))
            self.siblings += sum(
                len(its) > row.sibling.start - row.known
                for place, its in result.more.items()
                if (row := batch.rows[place]).sibling is not None
            )
            return result

        patch.setattr(ModelRunner, "execute", counted)
        patch.setattr(TreeDrafts, "propose", self.propose)

    def propose(self, _namespace: Hashable, tokens: Sequence[int], most: int) -> Draft | None:
        known = list(tokens)
        for text in self.texts:
            if text[: len(known)] == known and len(text) > len(known):
                draft = text[len(known) :][:most]
                right, sibling = tuple(draft[2:]), None
                if len(known) % 4 == 0:
                    draft[2::3] = [3] * len(draft[2::3])
                    if right and right[0] != 3:
                        sibling = Sibling(2, (*right[:5], 3)[: most - 2], 4)
                return Draft(tuple(draft), "oracle", 4, sibling)
        return None


@pytest.fixture
def oracle(monkeypatch: pytest.MonkeyPatch) -> Oracle:
    return Oracle(monkeypatch)


def answers(
    oracle: Oracle, folder: Path, **flags: Any
) -> tuple[list[RequestOutput], list[RequestOutput]]:
    """With and without drafts."""
    flags = {"kv_tokens": 1_000, "dtype": "float32", **flags}
    params = (GREEDY, ADJUSTED, *DRAWN, SCORED, FORMED)
    made = []
    for algorithm in ("off", "tree"):
        with Engine(str(folder), speculative_algorithm=algorithm, **flags) as engine:
            made.append([o for its in params for o in engine.generate(PROMPTS, its)])
        prompts = PROMPTS * len(params)
        oracle.texts = [[*p, *o.token_ids] for p, o in zip(prompts, made[0], strict=True)]
    assert oracle.saved > 30
    return made[0], made[1]


def told(outputs: list[RequestOutput]) -> list[tuple[Any, ...]]:
    return [
        (o.token_ids, o.text, o.finish_reason, o.matched_stop, [e.token for e in o.logprobs])
        for o in outputs
    ]


WITH_STATES = {"qwen3_5_text", "qwen3_next", "lfm2", "nemotron_h"}
CASES = [
    ("llama", {}),
    ("llama", {"page_size": 4}),
    ("llama", {"quantization": "int4"}),
    ("llama", {"quantization": "int8"}),
    ("llama", {"kv_cache_dtype": "int8"}),
    ("llama", {"kv_tokens": 120}),
    ("llama", {"kv_tokens": 120, "host_kv_tokens": 1_000, "disk_block_tokens": 8}),
    ("llama", {"tp_size": 2}),
    ("llama", {"schedule_policy": "priority", "max_running_requests": 2}),
    ("gemma3_text", {"swa_full_tokens_ratio": 0.2}),
    ("mixtral", {}),
    ("deepseek_v3", {}),
    ("deepseek_v32", {}),
    ("gpt_oss", {}),
    ("qwen3_5_text", {}),
    ("qwen3_next", {"page_size": 4, "chunked_prefill_size": 16}),
    ("lfm2", {"max_mamba_cache_size": 9}),
    ("nemotron_h", {"kv_tokens": 120}),
]


@pytest.mark.parametrize(("family", "flags"), CASES, ids=str)
@pytest.mark.usefixtures("checked_steps")
def test_the_same_answers(
    tmp_path: Path, oracle: Oracle, family: str, flags: dict[str, Any]
) -> None:
    plain, drafted = answers(oracle, make_checkpoint(tmp_path, family), **flags)
    assert told(drafted) == told(plain)
    chains = not flags.keys().isdisjoint({"page_size", "tp_size"}) or family in WITH_STATES
    assert chains == (oracle.siblings == 0)
    # Of keys in bytes, single rows and several are multiplied in other ways.
    near = 1e-2 if "kv_cache_dtype" in flags else 1e-4
    if family == "deepseek_v32":
        # Of keys whose scores are nearly equal, as in prompts that repeat, others may be read.
        near = 0.05
    for ours, theirs in zip(drafted, plain, strict=True):
        both = zip(ours.logprobs, theirs.logprobs, strict=True)
        assert all(a.logprob == pytest.approx(b.logprob, abs=near) for a, b in both)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_bits(tmp_path: Path, oracle: Oracle, dtype: str) -> None:
    folder = make_checkpoint(tmp_path, "llama")
    plain, drafted = answers(oracle, folder, dtype=dtype, deterministic=True)
    assert told(drafted) == told(plain)
    assert [o.logprobs for o in drafted] == [o.logprobs for o in plain]


def test_adapters_draft_from_their_own_texts(tmp_path: Path) -> None:
    """Each adapter's text is its own namespace's; answers are those without drafts."""
    folder = make_checkpoint(tmp_path / "model", "llama")
    adapter = make_adapter(tmp_path / "one", folder)
    told = []
    for algorithm in ("off", "tree"):
        flags = {"speculative_algorithm": algorithm, "lora_paths": (f"one={adapter}",)}
        with Engine(str(folder), kv_tokens=1_000, dtype="float32", **flags) as engine:
            for _ in range(2):
                outputs = [
                    engine.generate(PROMPTS, GREEDY),
                    engine.generate(PROMPTS, GREEDY, lora_path="one"),
                ]
            told.append([[o.token_ids for o in its] for its in outputs])
            accepted = engine.stats().accepted_tokens
    assert accepted > 60
    assert told[0] == told[1]
    assert told[0][0] != told[0][1]


def test_a_model_with_states_follows_grammars_by_itself(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path, "qwen3_next")
    flags = {"kv_tokens": 1_000, "dtype": "float32"}
    told = []
    for more in ({}, {"speculative_algorithm": "auto"}, {"max_running_requests": 1}):
        with Engine(str(folder), **flags, **more) as engine:
            outputs = engine.generate(PROMPTS, FORMED) + engine.generate(PROMPTS, FORMED)
            told.append([(o.token_ids, o.text) for o in outputs])
            stats = engine.stats()
            assert stats.accepted_of["grammar"][1] > 20
            assert {*stats.accepted_of} == {"grammar"}
            assert outputs[3].cached_tokens == len(PROMPTS[0]) - 1
    assert told[0] == told[1] == told[2]


@pytest.mark.parametrize("family", ["llama", "qwen3_5_text"])
def test_numbers_that_are_not_finite_in_a_draft_harm_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str
) -> None:
    """A token that spoils what comes after it, and is drafted, but never drawn."""
    folder, broken = make_checkpoint(tmp_path, family), 301
    file = folder / "model.safetensors"
    weights = load_file(file)
    assert "lm_head.weight" in weights
    weights["model.embed_tokens.weight"][broken] = float("inf")
    save_file(weights, file, {"format": "pt"})
    never = replace(GREEDY, logit_bias={broken: -100.0})
    asked: list[int] = []

    def propose(
        _self: TreeDrafts, _namespace: Hashable, tokens: Sequence[int], _most: int
    ) -> Draft:
        asked.append(len(tokens))
        return Draft((broken, 3, 3, 3), "broken", 4)

    monkeypatch.setattr(TreeDrafts, "propose", propose)
    told = []
    for algorithm in ("off", "tree"):
        flags = {"kv_tokens": 1_000, "dtype": "float32", "speculative_algorithm": algorithm}
        with Engine(str(folder), **flags) as engine:
            told.append([o.token_ids for o in engine.generate(PROMPTS, never)])
    assert len(asked) == len(PROMPTS), "one each"
    assert told[0] == told[1]
