"""Models that carry states: the same tokens, wherever checkpoints of these were stored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from radixlm import Engine, SamplingParams
from radixlm.assembly import loading
from radixlm.core.errors import ConfigError
from radixlm.core.keys import as_key
from radixlm.core.request import Namespace, RequestOutput
from radixlm.engine import EngineCore
from radixlm.testing.hybrids import HYBRIDS
from radixlm.testing.reference import greedy, load_reference, make_checkpoint
from tests.server_support import until, wait_for_copies

pytestmark = pytest.mark.usefixtures("always_read", "checked_steps")

BLOCK = 16
LONG = [2 + number * 7 % 60 for number in range(150)]
# A branch after 70 tokens, one after 100; a prompt that is a part of another.
PROMPTS = [LONG, [*LONG[:70], *range(2, 40)], [*LONG[:100], *range(9, 29)], LONG[:41]]
WARM = [149, 107, 119, 40]
PARAMS = SamplingParams(max_tokens=12, temperature=0, ignore_eos=True)
# Models without keys and values: they are refused.
ALONE = ("mamba", "falcon_mamba", "mamba2")
# One of each kind of state, and one beside each other kind of memory. They stand first, so that
# each is made once.
KINDS = "qwen3_5_text", "bamba", "lfm2", "lfm3", "kimi_linear"
NAMES = [
    pytest.param(name, marks=pytest.mark.slow if place else [])
    for place, name in enumerate((*KINDS, *sorted(HYBRIDS.keys() - {*KINDS, *ALONE})))
]
of_each_kind = pytest.mark.parametrize("model", NAMES[: len(KINDS)], indirect=True)
# Of a prompt and what it shares: too few for all checkpoints, and for one running request more.
FEW = {"max_mamba_cache_size": 4, "max_running_requests": 2, "kv_tokens": 200}


@pytest.fixture(scope="module", params=NAMES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_checkpoint(tmp_path_factory.mktemp("model"), request.param)


@pytest.fixture(scope="module")
def expected(model: Path) -> list[list[int]]:
    return greedy(load_reference(model), PROMPTS, PARAMS.max_tokens).tokens


def opened(model: Path, **flags: Any) -> Engine:
    sizes = {"kv_tokens": 1_000, "disk_block_tokens": BLOCK, "max_pinned_tokens": 0}
    return Engine(str(model), **{**sizes, "dtype": "float32", **flags})


def on_disk(folder: Path, **flags: Any) -> dict[str, Any]:
    return {"disk_cache": str(folder), "disk_cache_gb": 0.1, "disk_write_policy": "all", **flags}


def asked(engine: Engine) -> list[RequestOutput]:
    return [engine.generate(prompt, PARAMS)[0] for prompt in PROMPTS]


def tokens(outputs: list[RequestOutput]) -> list[list[int]]:
    return [list(output.token_ids) for output in outputs]


def read(outputs: list[RequestOutput], place: str) -> list[int]:
    return [getattr(output.miss, f"from_{place}") for output in outputs]


def known(engine: Engine) -> list[int]:
    """How much of each prompt could be gone on from, of what is stored."""

    def restorable(core: EngineCore) -> list[int]:
        [tier] = core.cache.tiers
        return [tier.restorable(as_key(prompt[:-1]), Namespace()) for prompt in PROMPTS]

    return list(engine.client.ask(restorable).result())


@of_each_kind
def test_few_slots_and_host_memory_find_what_many_slots_do(
    model: Path, expected: list[list[int]]
) -> None:
    with opened(model, host_kv_tokens=8_000, **FEW) as engine:
        cached, copied = list[int](), 0
        for _ in range(20):  # more is there after each, whatever was copied in time
            outputs = asked(engine)
            assert tokens(outputs) == expected
            wait_for_copies(engine)
            cached = [output.cached_tokens for output in outputs]
            copied += sum(read(outputs, "host"))
            if cached == WARM:
                break
        assert (cached, copied > 0) == (WARM, True)
        batch = engine.generate(PROMPTS, PARAMS)
        assert tokens(batch) == expected
        stats = engine.stats()
        assert (stats.leaks, stats.mamba_private, stats.mamba_locked) == (0, 0, 0)


def test_another_engine_goes_on_from_what_is_on_disk(
    model: Path, expected: list[list[int]], tmp_path: Path
) -> None:
    disk = on_disk(tmp_path / "disk")
    with opened(model, **disk) as engine:
        assert tokens(asked(engine)) == expected
    with opened(model, **disk, **FEW) as engine:
        assert until(lambda: known(engine) == WARM)
        outputs = asked(engine)
        assert tokens(outputs) == expected
        assert read(outputs, "disk") == [output.cached_tokens for output in outputs] == WARM
        assert engine.stats().leaks == 0


@of_each_kind
def test_a_damaged_block_of_a_state_is_found(
    model: Path, expected: list[list[int]], tmp_path: Path
) -> None:
    folder = tmp_path / "disk"
    with opened(model, **on_disk(folder)) as engine:
        asked(engine)
    [blocks] = folder.glob("*.blocks")
    # The first block of tokens stays; the last bytes of each other are others.
    data = bytearray(blocks.read_bytes())
    for at in range(len(data) // 3, len(data), 512):
        data[at] ^= 255
    blocks.write_bytes(data)
    with opened(model, **on_disk(folder)) as engine:
        assert until(lambda: engine.stats().disk_tokens > 0)
        assert tokens(asked(engine)) == expected
        assert engine.stats().disk_damaged > 0
        wait_for_copies(engine)
        assert tokens(asked(engine)) == expected


@of_each_kind
def test_no_room_for_a_checkpoint_is_said_at_once(model: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"holds no checkpoint of states, which takes the room of"
    ):
        opened(model, host_kv_tokens=BLOCK)


@pytest.mark.parametrize("flags", [{"host_kv_tokens": 256}, {"disk_cache": "there"}])
def test_states_without_keys_and_values_are_refused(
    flags: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before the weights are read."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(loading, "make_model", lambda *_, **__: pytest.fail("weights are read"))
    name = "--" + next(iter(flags)).replace("_", "-")
    with pytest.raises(ConfigError, match=f"{name} does not store the states of mamba2 yet"):
        Engine(str(make_checkpoint(tmp_path / "m", "mamba2")), kv_tokens=1_000, **flags)
