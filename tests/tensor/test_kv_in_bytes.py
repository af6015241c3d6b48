"""An engine whose keys and values are kept in 8 bits, by a flag."""

from __future__ import annotations

from pathlib import Path

import pytest

from radixlm import Engine, SamplingParams
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError
from radixlm.testing.checkpoints import write_random_checkpoint

GREEDY = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True, logprobs=1)
SHARED = [(7 * i + 3) % 250 for i in range(150)]
PROMPTS = [[*SHARED[:length], *range(length, length + 9)] for length in (1, 40, 90, 149, 150)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint("tiny", tmp_path_factory.mktemp("m") / "tiny", dtype="float32")


@pytest.mark.parametrize(("dtype", "near"), [("float32", 0.02), ("bfloat16", 0.1)])
def test_cold_cached_and_chunked_answers_are_those_of_the_model(
    folder: Path, dtype: str, near: float
) -> None:
    """Greedy tokens alike; log-probabilities close to those of an engine that keeps all bits."""
    with Engine(str(folder), kv_tokens=2_000, dtype=dtype) as engine:
        wanted = engine.generate(PROMPTS, GREEDY)
    deterministic = {"kv_cache_dtype": "int8", "dtype": dtype, "deterministic": True}
    with Engine(str(folder), kv_tokens=2_000, **deterministic) as engine:
        cold = engine.generate(PROMPTS, GREEDY)
        cached = engine.generate(PROMPTS, GREEDY)
        assert engine.info.kv_cache_dtype == "int8"
    with Engine(str(folder), kv_tokens=2_000, chunked_prefill_size=13, **deterministic) as engine:
        chunked = engine.generate(PROMPTS, GREEDY)
    assert all(output.cached_tokens == output.prompt_tokens - 1 for output in cached)
    for one, *others in zip(cold, cached, chunked, strict=True):
        for other in others:
            assert (other.token_ids, other.logprobs) == (one.token_ids, one.logprobs)
    for one, other in zip(cold, wanted, strict=True):
        assert abs(one.logprobs[0].logprob - other.logprobs[0].logprob) < near


def test_the_default_pool_holds_nearly_twice_as_many_tokens(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixlm.memory.pools.free_host_memory", lambda: 8 << 20)
    tokens, taken = {}, {}
    for kept in ("auto", "int8"):
        with Engine(str(folder), dtype="bfloat16", kv_cache_dtype=kept) as engine:
            tokens[kept], taken[kept] = engine.info.kv_tokens, engine.info.kv_bytes
    assert tokens["int8"] > 1.5 * tokens["auto"]
    assert taken["int8"] <= taken["auto"] * 1.01


@pytest.mark.parametrize("kept", ["fp8", "fp8_e4m3", "int4", "bfloat16", "", 8])
def test_other_types_are_refused_with_what_there_is(kept: object) -> None:
    with pytest.raises(ConfigError, match=r"--kv-cache-dtype is one of \('auto', 'int8'\), got"):
        EngineConfig.from_flags(kv_cache_dtype=kept)
