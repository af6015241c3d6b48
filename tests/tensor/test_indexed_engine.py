"""Engines of models that choose by an index what they read: the tokens of transformers, wherever
keys come from, and index keys with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from radixlm import Engine, SamplingParams
from radixlm.core.errors import ConfigError
from radixlm.core.request import RequestOutput
from radixlm.memory.pools import KVPool
from radixlm.testing.reference import INDEXED, greedy, load_reference, make_checkpoint
from tests.server_support import until, wait_for_copies

LONG = [2 + number * 7 % 60 for number in range(150)]
# Branches after 70 tokens and after 100; a prompt that is a part of another; one of fewer tokens
# than are chosen, which its answer goes beyond.
PROMPTS = [LONG, [*LONG[:70], *range(2, 40)], [*LONG[:100], *range(9, 29)], LONG[:41], LONG[:5]]
FILLERS = [[1, *reversed(LONG)], [0, *reversed(LONG)], [3, *reversed(LONG)]]
STEPS, BLOCK = 12, 8
PARAMS = SamplingParams(max_tokens=STEPS, temperature=0, ignore_eos=True)
# Of how many numbers: three layers' rows, and the index keys of those that have an index.
ROWS = {"deepseek_v32": 3 * 32 + 3 * 12, "glm_moe_dsa": 3 * 32 + 2 * 12, "axk2": 3 * 44}


class Model:
    """A tiny checkpoint and what transformers answers."""

    def __init__(self, folder: Path, architecture: str) -> None:
        self.name = architecture
        self.folder = make_checkpoint(folder, architecture, seed=3)
        self.wanted = greedy(load_reference(self.folder), PROMPTS, STEPS).tokens

    def opened(self, **flags: Any) -> Engine:
        return Engine(str(self.folder), **{"kv_tokens": 1_000, "dtype": "float32", **flags})


SLOW = ("axk2",)


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=pytest.mark.slow if name in SLOW else []) for name in INDEXED],
)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("model"), request.param)


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [list(output.token_ids) for output in outputs]


def test_a_token_takes_a_row_a_layer_and_an_index_key(model: Model) -> None:
    with model.opened() as engine:
        assert engine.info.kv_bytes == 1_000 * ROWS[model.name] * 4


def test_cold_then_warm_one_by_one(model: Model) -> None:
    with model.opened() as engine:
        for prompt, wanted in zip(PROMPTS, model.wanted, strict=True):
            engine.flush_cache()
            assert tokens(engine.generate(prompt, PARAMS)) == [wanted]
            again = engine.generate(prompt, PARAMS)[0]
            assert (list(again.token_ids), again.cached_tokens) == (wanted, len(prompt) - 1)


@pytest.mark.parametrize("chunk", [7, 64, 2048])
def test_together_and_in_chunks(model: Model, chunk: int) -> None:
    with model.opened(chunked_prefill_size=chunk) as engine:
        for _ in range(2):
            assert tokens(engine.generate(PROMPTS, PARAMS)) == model.wanted


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_pool_that_is_too_small_for_all(model: Model, page_size: int) -> None:
    """Requests are retracted, and come back."""
    flags = {"kv_tokens": 240, "schedule_conservativeness": 0.0, "page_size": page_size}
    with model.opened(**flags) as engine:
        for _ in range(2):
            assert tokens(engine.generate(PROMPTS, PARAMS)) == model.wanted
        assert engine.client.stats().retractions or page_size == 4


@pytest.mark.slow
def test_two_ranks(model: Model) -> None:
    """Each has all index keys, and chooses for itself."""
    with model.opened(tp_size=2) as engine:
        assert engine.info.kv_bytes == 2 * 1_000 * ROWS[model.name] * 4
        for _ in range(2):
            assert tokens(engine.generate(PROMPTS, PARAMS)) == model.wanted


def test_the_same_answers_from_disk(model: Model, tmp_path: Path, always_read: None) -> None:
    stored = {"disk_cache": str(tmp_path), "disk_block_tokens": BLOCK, "disk_cache_gb": 0.1}
    with model.opened(**stored, disk_write_policy="all") as engine:
        assert tokens(engine.generate(PROMPTS, PARAMS)) == model.wanted
        assert until(lambda: engine.stats().disk_tokens >= 144)
    with model.opened(**stored, disk_write_policy="off") as engine:
        assert until(lambda: engine.stats().disk_tokens >= 144)
        read = engine.generate(LONG, PARAMS)[0]
    assert (list(read.token_ids), read.cached_tokens) == (model.wanted[0], 144)


def test_the_same_answers_from_host_memory(model: Model, always_read: None) -> None:
    flags = {"host_kv_tokens": 2_000, "kv_tokens": 192, "max_pinned_tokens": 0}
    with model.opened(**flags, disk_block_tokens=BLOCK) as engine:
        assert tokens(engine.generate(LONG, PARAMS)) == model.wanted[:1]
        for filler in FILLERS:
            wait_for_copies(engine)
            engine.generate(filler, PARAMS)
        wait_for_copies(engine)
        again = engine.generate(LONG, PARAMS)[0]
    assert list(again.token_ids) == model.wanted[0]
    assert again.miss is not None
    assert again.miss.from_host == 144


def test_without_index_keys_answers_would_differ(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read: prompts here are long enough that what is chosen matters."""
    parts = KVPool.parts

    def forgotten(pool: KVPool, layer: int) -> list[torch.Tensor]:
        return parts(pool, layer)[:1]

    monkeypatch.setattr(KVPool, "parts", forgotten)
    flags = {"host_kv_tokens": 2_000, "kv_tokens": 192, "max_pinned_tokens": 0}
    with model.opened(**flags, disk_block_tokens=BLOCK) as engine:
        engine.generate(LONG, PARAMS)
        for filler in FILLERS:
            wait_for_copies(engine)
            engine.generate(filler, PARAMS)
        wait_for_copies(engine)
        assert tokens(engine.generate(LONG, PARAMS)) != model.wanted[:1]


@pytest.mark.parametrize("flags", [{"dtype": "bfloat16"}, {"quantization": "int8"}])
def test_other_types_are_the_same_cold_and_warm(model: Model, flags: dict[str, str]) -> None:
    with model.opened(**flags) as engine:
        cold, warm = (
            [tokens(engine.generate(prompt, PARAMS)) for prompt in PROMPTS] for _ in range(2)
        )
    assert warm == cold


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ({"kv_cache_dtype": "int8"}, "int8 is not for glm_moe_dsa"),
        ({"deterministic": True}, "--deterministic does not know the latents of glm_moe_dsa"),
    ],
)
def test_what_it_can_not_is_refused_before_loading(
    tmp_path: Path, flags: dict[str, Any], error: str
) -> None:
    folder = make_checkpoint(tmp_path, "glm_moe_dsa")
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=error):
        Engine(str(folder), kv_tokens=1_000, **flags)
