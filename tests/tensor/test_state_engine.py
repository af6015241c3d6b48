"""Engines of models that carry states: the tokens of transformers, wherever they go on from."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from safetensors.torch import load_file, save_file

from radixlm import Engine, SamplingParams
from radixlm.assembly import loading
from radixlm.cache.components.states import StateSlots
from radixlm.cli.check_command import command as check_command
from radixlm.core.errors import ConfigError, InvalidRequestError
from radixlm.core.misses import MissReason
from radixlm.core.request import Breakpoint, RequestOutput
from radixlm.testing.hybrids import HYBRIDS
from radixlm.testing.reference import greedy, load_reference, make_checkpoint

pytestmark = pytest.mark.usefixtures("checked_steps")

LONG = [2 + number * 7 % 60 for number in range(150)]
# A branch after 70 tokens, one after 100; a prompt that is a part of another.
PROMPTS = [LONG, [*LONG[:70], *range(2, 40)], [*LONG[:100], *range(9, 29)], LONG[:41]]
STEPS = 12
PARAMS = SamplingParams(max_tokens=STEPS, temperature=0, ignore_eos=True)
LATENT = "bailing_hybrid", "kimi_linear"
NOT_DETERMINISTIC = *LATENT, "mamba", "falcon_mamba", "jamba", "lfm3", "recurrent_gemma", "zamba"
# One of each kind of state, and one beside each other kind of memory: what an engine does with
# checkpoints is the same for all of a kind. They stand first, so that each is made once.
KINDS = "qwen3_5_text", "bamba", "lfm2", "lfm3", "kimi_linear", "mamba"
NAMES = [
    pytest.param(name, marks=pytest.mark.slow if place else [])
    for place, name in enumerate((*KINDS, *sorted(HYBRIDS.keys() - {*KINDS})))
]
of_each_kind = pytest.mark.parametrize("model", NAMES[: len(KINDS)], indirect=True)


class Model:
    """A tiny checkpoint and what transformers answers."""

    def __init__(self, folder: Path, architecture: str) -> None:
        self.architecture = architecture
        self.folder = make_checkpoint(folder, architecture)
        self.architecture = architecture
        self._reference = load_reference(self.folder)
        self.wanted = self.answers(PROMPTS)

    def answers(self, prompts: list[list[int]], steps: int = STEPS) -> list[list[int]]:
        return greedy(self._reference, prompts, steps).tokens

    def opened(self, **flags: Any) -> Engine:
        return Engine(str(self.folder), **{"kv_tokens": 1_000, "dtype": "float32", **flags})


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("model"), request.param)


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [list(output.token_ids) for output in outputs]


def one_by_one(engine: Engine, prompts: list[list[int]]) -> list[RequestOutput]:
    return [engine.generate(prompt, PARAMS)[0] for prompt in prompts]


def states_of(engine: Engine) -> StateSlots:
    found = engine.client.ask(lambda core: core.cache.components).result()
    [states] = [its for its in found if isinstance(its, StateSlots)]
    return states


def test_cold_then_warm_from_ends_of_prompts(model: Model) -> None:
    with model.opened() as engine:
        for prompt, wanted in zip(PROMPTS, model.wanted, strict=True):
            engine.flush_cache()
            assert engine.generate(prompt, PARAMS)[0].cached_tokens == 0
            again = engine.generate(prompt, PARAMS)[0]
            assert (list(again.token_ids), again.cached_tokens) == (wanted, len(prompt) - 1)


@of_each_kind
def test_the_next_turn_goes_on_from_the_end_of_an_answer(model: Model) -> None:
    turn = [*LONG, *model.wanted[0], 5, 6, 7]
    [wanted] = model.answers([turn])
    with model.opened() as engine:
        engine.generate(LONG, PARAMS)
        after = engine.generate(turn, PARAMS)[0]
    # The answer's last token was never computed.
    assert (list(after.token_ids), after.cached_tokens) == (wanted, len(LONG) + STEPS - 1)


@of_each_kind
def test_prompts_that_wait_together_part_at_checkpoints(model: Model) -> None:
    """The second request of a branch hits, not the third."""
    with model.opened() as engine:
        found = engine.generate(PROMPTS, PARAMS)
    assert tokens(found) == model.wanted
    assert sorted(output.cached_tokens for output in found) == [0, 40, 70, 100]


@of_each_kind
def test_a_branch_that_came_too_late_is_told_and_left_a_checkpoint(model: Model) -> None:
    """It parts before the last 64 tokens of the first, which left one there."""
    prompts = [LONG, [*LONG[:40], *range(2, 40)]]
    wanted = model.answers(prompts)
    with model.opened() as engine:
        found = one_by_one(engine, prompts)
        miss = found[1].miss
        assert miss is not None
        assert (miss.reason, miss.cached, miss.evicted) == (MissReason.NO_STATE, 0, 40)
        assert "40 from token 0 on are cached, but no state" in str(miss)
        third = engine.generate([*LONG[:40], 1, 1, 1], PARAMS)[0]
    assert (tokens(found), third.cached_tokens) == (wanted, 40)


@pytest.mark.parametrize("chunk", [16, 64])
def test_chunks_and_a_ladder_of_checkpoints(model: Model, chunk: int) -> None:
    flags = {"chunked_prefill_size": chunk, "state_checkpoint_interval": 32}
    with model.opened(**flags) as engine:
        found = one_by_one(engine, PROMPTS)
    assert tokens(found) == model.wanted
    assert [output.cached_tokens for output in found] == [0, 64, 96, 32]


@of_each_kind
@pytest.mark.parametrize("page_size", [1, 4])
def test_a_pool_of_tokens_that_is_too_small_for_all(model: Model, page_size: int) -> None:
    """Requests are retracted, and come back to where they were."""
    flags = {"kv_tokens": 240, "schedule_conservativeness": 0.0, "page_size": page_size}
    with model.opened(**flags) as engine:
        for _ in range(2):
            assert tokens(engine.generate(PROMPTS, PARAMS)) == model.wanted
        assert engine.client.stats().retractions or page_size == 4


@of_each_kind
@pytest.mark.parametrize("size", [2, 3, 5])
def test_a_pool_of_states_that_is_too_small_for_all(model: Model, size: int) -> None:
    with model.opened(max_mamba_cache_size=size, state_checkpoint_interval=8) as engine:
        for _ in range(2):
            assert tokens(engine.generate(PROMPTS, PARAMS)) == model.wanted
        stats = engine.client.stats()
        assert (stats.mamba_capacity, stats.mamba_private, stats.mamba_locked) == (size, 0, 0)
        assert stats.mamba_free + stats.mamba_evictable == size
        assert stats.mamba_evicted
        assert stats.leaks == 0


@of_each_kind
def test_without_a_cache(model: Model) -> None:
    with model.opened(disable_radix_cache=True) as engine:
        for _ in range(2):
            assert tokens(engine.generate(PROMPTS, PARAMS)) == model.wanted
        assert engine.client.stats().mamba_free == states_of(engine).capacity


@pytest.mark.parametrize(
    "flags", [{"dtype": "bfloat16"}, {"kv_cache_dtype": "int8"}, {"quantization": "int8"}]
)
def test_other_types_are_alike_cold_and_warm(model: Model, flags: dict[str, str]) -> None:
    """As of any model: rows of several tokens are rounded in another way than one alone."""
    if "kv_cache_dtype" in flags and model.architecture in LATENT:
        pytest.skip("latents are short already")
    params = SamplingParams(temperature=0, max_tokens=1, ignore_eos=True, logprobs=0)
    with model.opened(**flags) as engine:
        cold, warm = (engine.generate(PROMPTS, params) for _ in range(2))
    assert all(output.cached_tokens for output in warm)
    chances = [[output.logprobs[0].logprob for output in its] for its in (cold, warm)]
    assert chances[1] == pytest.approx(chances[0], abs=0.1)


def test_a_state_that_is_not_finite_is_left_nowhere(model: Model, tmp_path: Path) -> None:
    """Nor is what was computed of the prompt before: a state is what all tokens made of it."""
    folder = tmp_path / "broken"
    shutil.copytree(model.folder, folder)
    weights = load_file(folder / "model.safetensors")
    ends = "embed_tokens.weight", "embeddings.weight"
    [embedding] = [its for name, its in weights.items() if name.endswith(ends)]
    weights.setdefault("lm_head.weight", embedding.clone())
    embedding[319] = float("nan")
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    bad = [*LONG[:60], 319, *LONG[60:]]
    flags = {"dtype": "float32", "state_checkpoint_interval": 16}
    with Engine(str(folder), kv_tokens=1_000, **flags) as engine:
        for _ in range(2):
            with pytest.raises(InvalidRequestError, match="not finite"):
                engine.generate(bad, PARAMS)
            assert engine.stats().mamba_free == engine.info.mamba_slots
        assert list(engine.generate(LONG, PARAMS)[0].token_ids) == model.wanted[0]


@of_each_kind
def test_pins_keep_a_checkpoint(model: Model) -> None:
    with model.opened(max_mamba_cache_size=4, max_pinned_tokens=400) as engine:
        engine.generate(LONG, PARAMS)
        pin = engine.pin(LONG)
        assert pin.tokens == len(LONG) - 1
        one_by_one(engine, PROMPTS[1:])
        again = engine.generate(LONG, PARAMS)[0]
        engine.unpin(pin.id)
    assert (list(again.token_ids), again.cached_tokens) == (model.wanted[0], len(LONG) - 1)


@of_each_kind
def test_breakpoints_are_kept(model: Model) -> None:
    """What is to be kept of a prompt ends at a checkpoint, and stays."""
    with model.opened(max_mamba_cache_size=6, max_pinned_tokens=400) as engine:
        marked = engine.generate(LONG, PARAMS, breakpoints=[Breakpoint(60, 100.0)])[0]
        assert marked.kept == (Breakpoint(60, 100.0),)
        one_by_one(engine, [prompt[9:] for prompt in PROMPTS])
        again = engine.generate([*LONG[:60], 1, 2], PARAMS)[0]
    assert (list(marked.token_ids), again.cached_tokens) == (model.wanted[0], 60)


@of_each_kind
@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2))
def test_random_chats(model: Model, seed: int) -> None:
    """Chats that share beginnings, several at a time, in pools that are too small."""
    draw = random.Random(seed)
    flags = {
        "kv_tokens": draw.choice((200, 400)),
        "max_mamba_cache_size": draw.choice((4, 8)),
        "chunked_prefill_size": draw.choice((16, 48, 256)),
        "state_checkpoint_interval": draw.choice((0, 16)),
        "schedule_conservativeness": draw.choice((0.0, 1.0)),
    }
    chats = [[2 + draw.randrange(300) for _ in range(draw.randint(20, 60))]]
    with model.opened(**flags) as engine:
        for _ in range(6):
            prompts = []
            for _ in range(draw.randint(1, 4)):
                chat = draw.choice(chats)
                kept = chat[: draw.choice((len(chat), draw.randint(1, len(chat))))]
                prompts.append(kept[:120] + [2 + draw.randrange(300) for _ in range(9)])
            answers = tokens(engine.generate(prompts, PARAMS))
            assert answers == model.answers(prompts)
            chats += [[*prompt, *its] for prompt, its in zip(prompts, answers, strict=True)]
        stats = engine.client.stats()
    assert (stats.mamba_private, stats.mamba_locked, stats.leaks) == (0, 0, 0)


@pytest.mark.parametrize(
    "flags",
    [
        {"tp_size": 2},
        {"lora_paths": ("adapter",)},
    ],
    ids=lambda flags: next(iter(flags)),
)
def test_what_does_not_go_with_states_is_refused_by_name(
    model: Model, flags: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the weights are read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loading, "make_model", lambda *_, **__: pytest.fail("weights are read"))
    name = "--" + next(iter(flags)).replace("_", "-")
    with pytest.raises(ConfigError, match=f"{name} does not know the (states|latents) of "):
        model.opened(**flags)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_same_bits_in_any_company(model: Model, dtype: str) -> None:
    """Wherever prompts are cut, and whether their tokens were read or written."""
    if model.architecture in NOT_DETERMINISTIC:
        unknown = "--deterministic does not know (the (latents|states)|sliding windows)"
        with pytest.raises(ConfigError, match=unknown):
            model.opened(deterministic=True)
        return
    params = replace(PARAMS, logprobs=5)
    prompts = [*PROMPTS, [*LONG, *model.wanted[0], 5, 6, 7]]

    def run(**flags: Any) -> list[object]:
        flags |= {"deterministic": True, "dtype": dtype}
        with model.opened(**flags) as engine:
            engine.generate(PROMPTS, params)
            return [(each.token_ids, each.logprobs) for each in engine.generate(prompts, params)]

    alone = run(disable_radix_cache=True, max_running_requests=1)
    assert run() == alone
    assert run(chunked_prefill_size=16, state_checkpoint_interval=32) == alone
    assert run(kv_tokens=240, schedule_conservativeness=0.0) == alone


def test_what_a_state_takes_is_said_before_it_is_served(model: Model) -> None:
    said = CliRunner().invoke(check_command, [str(model.folder), "--json"]).output
    with model.opened() as engine:
        info = engine.info
    assert json.loads(said)["state_bytes"] * info.mamba_slots == info.mamba_bytes > 0
    words = CliRunner().invoke(check_command, [str(model.folder)]).output
    assert "of keys and values; a checkpoint of states 0.0" in words


def test_a_model_of_states_alone_keeps_no_keys_and_values(tmp_path: Path) -> None:
    """Its tree has tokens and checkpoints."""
    model = Model(tmp_path, "mamba2")
    with Engine(str(model.folder), dtype="float32") as engine:
        assert (engine.info.kv_bytes, engine.info.kv_tokens) == (0, 1 << 20)
        found = [engine.generate(LONG, PARAMS)[0] for _ in range(2)]
        stats = engine.stats()
    assert tokens(found) == [model.wanted[0]] * 2
    assert (found[1].cached_tokens, stats.kv_evictable > 0) == (len(LONG) - 1, True)


def test_states_beside_windows(tmp_path: Path) -> None:
    """With too few slots of either kind for all prompts."""
    model = Model(tmp_path, "lfm3")
    flags = {"kv_tokens": 500, "swa_full_tokens_ratio": 0.3, "max_mamba_cache_size": 5}
    with model.opened(**flags, chunked_prefill_size=32) as engine:
        for _ in range(3):
            assert tokens(engine.generate(PROMPTS, PARAMS)) == model.wanted
            assert tokens(one_by_one(engine, PROMPTS)) == model.wanted
        stats = engine.client.stats()
    assert (stats.mamba_private, stats.swa_private, stats.leaks) == (0, 0, 0)
    assert stats.swa_evicted_tokens
    assert stats.mamba_evicted
    assert stats.cached_tokens


def test_the_interval_is_in_whole_pages() -> None:
    with pytest.raises(ConfigError, match="must be a multiple of --page-size 8, got 12"):
        Engine(page_size=8, state_checkpoint_interval=12)
