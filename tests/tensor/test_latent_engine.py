"""An engine of a model with latents: what it keeps, where that may go, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from radixlm import Engine, SamplingParams
from radixlm.core.errors import ConfigError
from radixlm.core.request import RequestOutput
from radixlm.testing.reference import make_checkpoint
from tests.server_support import until, wait_for_copies

LONG = [2 + number * 7 % 60 for number in range(90)]
PROMPTS = [LONG, [*LONG[:45], *range(2, 40)], [*LONG[:20], 1]]
# Twice as many tokens as a small pool has.
FILLERS = [[1, *reversed(LONG)], [0, *reversed(LONG)], [3, *reversed(LONG)]]
PARAMS = SamplingParams(max_tokens=10, temperature=0, ignore_eos=True)
BLOCK = 8


@pytest.fixture(scope="module", params=["deepseek_v2", "deepseek_v3"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), request.param)


def tokens(outputs: list[RequestOutput]) -> list[tuple[int, ...]]:
    return [output.token_ids for output in outputs]


def opened(model: Path, **flags: Any) -> Engine:
    return Engine(str(model), **{"kv_tokens": 1_000, "dtype": "float32", **flags})


def test_a_token_takes_one_row_a_layer(model: Path) -> None:
    with opened(model) as engine:
        assert engine.info.kv_bytes == 1_000 * 3 * 32 * 4
        cold, warm = (engine.generate(PROMPTS, PARAMS) for _ in range(2))
        assert tokens(warm) == tokens(cold)
        assert warm[0].cached_tokens == 89


def test_the_same_answers_from_disk(model: Path, tmp_path: Path, always_read: None) -> None:
    """Blocks hold a token's row once."""
    stored = {"disk_cache": str(tmp_path), "disk_block_tokens": BLOCK, "disk_cache_gb": 0.1}
    with opened(model) as engine:
        wanted = tokens(engine.generate(PROMPTS, PARAMS))
    with opened(model, **stored, disk_write_policy="all") as engine:
        assert tokens([engine.generate(prompt, PARAMS)[0] for prompt in PROMPTS]) == wanted
        assert until(lambda: engine.stats().disk_tokens >= 88)
    with opened(model, **stored, disk_write_policy="off") as engine:
        assert until(lambda: engine.stats().disk_tokens >= 88)
        read = engine.generate(LONG, PARAMS)[0]
    assert (read.token_ids, read.cached_tokens) == (wanted[0], 88)


def test_the_same_answers_from_host_memory(model: Path, always_read: None) -> None:
    flags = {"host_kv_tokens": 2_000, "kv_tokens": 128, "max_pinned_tokens": 0}
    with opened(model) as engine:
        wanted = engine.generate(LONG, PARAMS)[0].token_ids
    with opened(model, **flags, disk_block_tokens=BLOCK) as engine:
        assert engine.generate(LONG, PARAMS)[0].token_ids == wanted
        for filler in FILLERS:
            wait_for_copies(engine)
            engine.generate(filler, PARAMS)
        wait_for_copies(engine)
        again = engine.generate(LONG, PARAMS)[0]
    assert again.token_ids == wanted
    assert again.miss is not None
    assert again.miss.from_host == 88


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        ({"kv_cache_dtype": "int8"}, "int8 is not for deepseek_v2"),
        ({"deterministic": True}, "--deterministic does not know the latents of deepseek_v2"),
    ],
)
def test_what_is_not_for_latents_is_refused_before_loading(
    tmp_path: Path, flags: dict[str, Any], error: str
) -> None:
    folder = make_checkpoint(tmp_path, "deepseek_v2")
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ConfigError, match=error):
        opened(folder, **flags)
