"""Answers do not depend on whether keys and values went through host memory, whole or in part."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from radixlm import Engine, SamplingParams
from radixlm.core.errors import ConfigError
from radixlm.core.keys import as_key
from radixlm.core.request import Namespace, RequestOutput
from radixlm.testing.reference import make_checkpoint
from tests.server_support import until, wait_for_copies

BLOCK = 8
LONG = [2 + number * 7 % 60 for number in range(90)]
PROMPTS = [LONG, [*LONG[:45], *range(2, 40)], [*LONG[:20], 1]]
# Twice as many tokens as the pool has: they leave nothing else in it.
FILLERS = [[1, *reversed(LONG)], [0, *reversed(LONG)], [3, *reversed(LONG)]]
PARAMS = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True, logprobs=2)
# Beside llama: what a store sees of a model are layers, heads and types. With windows the bits
# depend on chunks.
OTHERS = ("mistral", "qwen2", "qwen3", "olmoe")
FLAGS: dict[str, Any] = {
    "dtype": "bfloat16",
    "deterministic": True,
    "kv_tokens": 128,
    "max_pinned_tokens": 0,
}


def bits(output: RequestOutput) -> object:
    return output.token_ids, output.logprobs


def places(output: RequestOutput) -> tuple[int | None, int | None]:
    """How many of its tokens were copied from host memory, and read from disk."""
    assert output.miss is not None
    return output.miss.from_host, output.miss.from_disk


def after(engine: Engine, beginning: list[int], prompt: list[int]) -> RequestOutput:
    """The answer to a prompt, of whose tokens the pool has none, and host memory whole blocks of
    the beginning's.
    """
    key = as_key(beginning)

    def stored() -> bool:
        """Asked of the engine's thread."""
        asked = engine.client.ask(lambda core: core.cache.tiers[0].length_of(key, Namespace()))
        return bool(asked.result() == key.size - key.size % BLOCK)

    engine.flush_cache()
    engine.generate([*beginning, *FILLERS[0]][:100], PARAMS)
    assert until(stored)
    for filler in FILLERS:
        engine.generate(filler, PARAMS)
    wait_for_copies(engine)
    return engine.generate(prompt, PARAMS)[0]


@pytest.mark.parametrize("kept", ["auto", "int8"])
@pytest.mark.parametrize(
    "architecture",
    [
        "llama",
        *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS),
    ],
)
def test_the_same_bits_from_host_memory_and_disk(
    tmp_path: Path, always_read: None, architecture: str, kept: str
) -> None:
    model, disk = make_checkpoint(tmp_path / "model", architecture), str(tmp_path / "disk")
    flags = {**FLAGS, "kv_cache_dtype": kept}
    with Engine(str(model), **{**flags, "kv_tokens": 1_000}) as engine:
        cold = [bits(engine.generate(prompt, PARAMS)[0]) for prompt in PROMPTS]
    on_disk = {"disk_cache": disk, "disk_cache_gb": 0.1, "disk_block_tokens": BLOCK}
    with Engine(str(model), **{**flags, **on_disk}, disk_write_policy="all") as engine:
        engine.generate(PROMPTS[0], PARAMS)
    both = {**on_disk, "disk_write_policy": "off"}
    for more, beginning, wanted in (
        ({"disk_block_tokens": BLOCK}, LONG, [(88, None), (40, None), (16, None)]),
        (both, LONG[:48], [(48, 40), (40, 0), (16, 0)]),
    ):
        with Engine(str(model), **flags, **more, host_kv_tokens=800) as engine:
            if more is both:
                assert until(lambda: engine.stats().disk_tokens == 96)
            warm = [after(engine, beginning, prompt) for prompt in PROMPTS]
        assert [bits(output) for output in warm] == cold
        assert [places(output) for output in warm] == wanted


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"host_kv_tokens": 7}, "--host-kv-tokens 7 has no room for a block: give at least"),
        ({"disable_radix_cache": True}, "--host-kv-tokens has no use with --disable-radix-cache"),
        ({"page_size": 16}, "--disk-block-tokens must be a multiple of --page-size 16, got 8"),
        ({"host_kv_tokens": 10**12}, "no memory for --host-kv-tokens 1000000000000, which take"),
        ({"host_kv_tokens": -1}, "--host-kv-tokens is an integer of at least 0"),
    ],
)
def test_what_can_not_be_is_said_at_once(tmp_path: Path, flags: dict[str, Any], said: str) -> None:
    model = make_checkpoint(tmp_path / "model", "llama")
    given = {"kv_tokens": 1_000, "disk_block_tokens": BLOCK, "host_kv_tokens": 800, **flags}
    with pytest.raises(ConfigError, match=said):
        Engine(str(model), **given)
