"""Answers do not depend on where keys and values were: computed, in the pool, on disk, in part."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from radixlm import Engine, SamplingParams
from radixlm.core.errors import ConfigError
from radixlm.core.request import Namespace, RequestOutput
from radixlm.memory.disk_store import DiskStore, StoredBlock
from radixlm.testing.reference import make_checkpoint
from tests.server_support import until

BLOCK = 8
LONG = [2 + number * 7 % 60 for number in range(90)]
PROMPTS = [LONG, [*LONG[:45], *range(2, 40)], [7, 8, 9]]
PARAMS = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True, logprobs=2)
# Tokens on disk of the three prompts and their answers: 96, 48 beyond the shared 40, 8.
STORED = 152
# Beside llama: what a store sees of a model are layers, heads and types. With windows the bits
# depend on chunks.
OTHERS = ("mistral", "qwen2", "qwen3", "olmoe")
EXACT: dict[str, Any] = {"dtype": "bfloat16", "deterministic": True}


@pytest.fixture(autouse=True)
def reading_pays(always_read: None) -> None:
    """In all of them."""


def opened(model: Path, disk: Path | None, **flags: Any) -> Engine:
    stored: dict[str, Any] = {}
    if disk is not None:
        stored = {"disk_cache": str(disk), "disk_block_tokens": BLOCK, "disk_cache_gb": 0.1}
        stored["disk_write_policy"] = "all"
    return Engine(str(model), **{"kv_tokens": 1_000, **stored, **flags})


def answers(engine: Engine) -> list[RequestOutput]:
    return [engine.generate(prompt, PARAMS)[0] for prompt in PROMPTS]


def bits(outputs: list[RequestOutput]) -> list[object]:
    return [(output.token_ids, output.logprobs) for output in outputs]


def cached(outputs: list[RequestOutput]) -> list[int]:
    return [output.cached_tokens for output in outputs]


def restarted(model: Path, disk: Path, stored: int, **flags: Any) -> list[RequestOutput]:
    """The answers of an engine that has found this many tokens on disk."""
    with opened(model, disk, **{**flags, "disk_write_policy": "off"}) as engine:
        assert until(lambda: engine.stats().disk_tokens == stored), engine.stats().disk_tokens
        return answers(engine)


@pytest.mark.parametrize("kept", ["auto", "int8"])
@pytest.mark.parametrize(
    "architecture",
    [
        "llama",
        *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS),
    ],
)
def test_the_same_bits_from_everywhere(tmp_path: Path, architecture: str, kept: str) -> None:
    model, disk = make_checkpoint(tmp_path / "model", architecture), tmp_path / "disk"
    flags = {**EXACT, "kv_cache_dtype": kept}
    with opened(model, None, **flags) as engine:
        cold = answers(engine)
    assert cached(cold) == [0, 45, 0]
    with opened(model, disk, **flags) as engine:
        assert bits(answers(engine)) == bits(cold)
        warm = answers(engine)
        assert bits(warm) == bits(cold)
        assert cached(warm) == [89, 82, 2]
    read = restarted(model, disk, STORED, **flags)
    assert bits(read) == bits(cold)
    assert cached(read) == [88, 80, 0]


def test_half_from_disk(tmp_path: Path) -> None:
    """What another prompt had stored of it, then computed."""
    model, disk = make_checkpoint(tmp_path / "model", "llama"), tmp_path / "disk"
    with opened(model, None, **EXACT) as engine:
        cold = answers(engine)
    with opened(model, disk, **EXACT) as engine:
        engine.generate(LONG[:50], PARAMS)
    read = restarted(model, disk, 56, **EXACT)
    assert bits(read) == bits(cold)
    assert cached(read) == [48, 45, 0]


def test_a_stop_while_blocks_are_written_loses_none_after_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = DiskStore.put

    def late(store: DiskStore, blocks: Iterable[StoredBlock]) -> int:
        time.sleep(0.1)
        return put(store, blocks)

    monkeypatch.setattr(DiskStore, "put", late)
    model, disk = make_checkpoint(tmp_path / "model", "llama"), tmp_path / "disk"
    with opened(model, disk) as engine:
        answers(engine)
    restarted(model, disk, STORED)


def test_other_weights_ropes_types_and_namespaces_are_apart(tmp_path: Path) -> None:
    model, disk = make_checkpoint(tmp_path / "model", "llama"), tmp_path / "disk"
    other = make_checkpoint(tmp_path / "other" / "model", "llama", seed=1)
    turned = make_checkpoint(tmp_path / "turned" / "model", "llama")
    config = json.loads((turned / "config.json").read_text())
    scaled = {"rope_type": "linear", "factor": 2.0}
    (turned / "config.json").write_text(json.dumps({**config, "rope_scaling": scaled}))
    with opened(model, disk, dtype="bfloat16") as engine:
        engine.generate(LONG, PARAMS)
    for folder, flags in (
        (other, {"dtype": "bfloat16"}),
        (turned, {"dtype": "bfloat16"}),
        (model, {"dtype": "float32"}),
        (model, {"dtype": "bfloat16", "kv_cache_dtype": "int8"}),
        (model, {"dtype": "bfloat16", "page_size": 2}),
    ):
        with opened(folder, disk, **flags) as engine:
            assert engine.generate(LONG, PARAMS)[0].cached_tokens == 0
    with opened(model, disk, dtype="bfloat16", disk_write_policy="off") as engine:
        assert until(lambda: engine.stats().disk_tokens == 96)
        for field in ("cache_salt", "extra_key"):  # adapters: test_adapter_engine.py
            others = Namespace(**{field: "a"})
            assert engine.generate(LONG, PARAMS, namespace=others)[0].cached_tokens == 0
        assert engine.generate(LONG, PARAMS)[0].cached_tokens == 88


def test_a_folder_that_is_lost_ends_only_the_writing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    model, disk = make_checkpoint(tmp_path / "model", "llama"), tmp_path / "disk"
    with opened(model, disk, **EXACT) as engine:
        first = bits(answers(engine))
        disk.rename(tmp_path / "lost")  # in one step, whatever is being written
        engine.generate([5, *LONG], PARAMS)
        engine.flush_cache()
        assert bits(answers(engine)) == first
    warned = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert ["disk cache" in each.getMessage() for each in warned] == [True]


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"disable_radix_cache": True}, "--disk-cache has no use with --disable-radix-cache"),
        ({"page_size": 16}, "--disk-block-tokens must be a multiple of --page-size 16, got 8"),
        ({"disk_cache_gb": 0.001}, "has no room for a block"),
    ],
)
def test_what_can_not_be_is_said_at_once(tmp_path: Path, flags: dict[str, Any], said: str) -> None:
    model = make_checkpoint(tmp_path / "model", "llama")
    with pytest.raises(ConfigError, match=said):
        Engine(
            str(model),
            kv_tokens=1_000,
            disk_cache=str(tmp_path / "disk"),
            disk_block_tokens=BLOCK,
            **flags,
        )


def test_a_folder_is_looked_at_before_the_model(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="is no folder"):
        Engine(str(tmp_path / "no model"), disk_cache=str(tmp_path / "file"))
