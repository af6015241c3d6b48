"""The public Engine on a tiny model: what it promises, and what it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

import radixlm
from radixlm import AsyncEngine, Engine, EngineConfig, Namespace, SamplingParams
from radixlm.attention import backends
from radixlm.core.errors import (
    ConfigError,
    InvalidRequestError,
    ModelError,
    PinError,
    RequestTooLargeError,
)
from radixlm.core.request import FinishReason
from radixlm.testing.checkpoints import write_random_checkpoint

GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint("tiny", tmp_path_factory.mktemp("m") / "tiny", dtype="float32")


@pytest.fixture
def engine(folder: Path) -> Iterator[Engine]:
    with Engine(str(folder), kv_tokens=2_000) as made:
        yield made
        stats = made.stats()
        assert stats.leaks == 0
        assert stats.kv_free + stats.kv_evictable == stats.kv_capacity


def test_every_kind_of_prompt(engine: Engine) -> None:
    ids = engine.tokenizer.encode("hello")
    [one] = engine.generate("hello", GREEDY)
    [two] = engine.generate(ids.tolist(), GREEDY)
    [three] = engine.generate(np.asarray(ids, dtype=np.int64), GREEDY)
    four, five = engine.generate(["hello", ids.tolist()], GREEDY)
    assert one.token_ids == two.token_ids == three.token_ids == four.token_ids == five.token_ids
    assert one.prompt_tokens == 5
    assert engine.generate([], GREEDY) == []


def test_the_second_prompt_finds_the_shared_part(engine: Engine) -> None:
    shared = list(range(100, 200))
    engine.generate([[*shared, 1]], GREEDY)
    [second] = engine.generate([[*shared, 2, 3]], GREEDY)
    assert second.cached_tokens == 100
    [other] = engine.generate([[*shared, 2]], GREEDY, namespace=Namespace(cache_salt="mine"))
    assert other.cached_tokens == 0
    assert engine.flush_cache() > 0
    [cold] = engine.generate([[*shared, 2, 3]], GREEDY)
    assert cold.cached_tokens == 0
    assert cold.token_ids == second.token_ids


@pytest.mark.slow
def test_sampling_does_not_depend_on_batch_or_cache(folder: Path) -> None:
    prompts = [[*range(50, 80), index] for index in range(6)]
    params = [
        SamplingParams(max_tokens=12, temperature=0.9, top_p=0.95, seed=index, ignore_eos=True)
        for index in range(6)
    ]
    runs = []
    for flags in (
        {"kv_tokens": 2_000},
        {"kv_tokens": 2_000, "disable_radix_cache": True},
        {"kv_tokens": 2_000, "max_running_requests": 1},
        {"kv_tokens": 96, "schedule_conservativeness": 0.0},
    ):
        with Engine(str(folder), **flags) as engine:
            outputs = engine.generate(prompts, params)
            runs.append([output.token_ids for output in outputs])
            if flags["kv_tokens"] == 96:
                assert engine.stats().retractions > 0
    assert runs[1:] == runs[:-1]
    assert len(set(runs[0])) == 6


def test_without_a_seed_answers_differ(engine: Engine) -> None:
    params = SamplingParams(max_tokens=12, temperature=1.5, ignore_eos=True)
    outputs = engine.generate([[1, 2, 3]] * 4, params)
    assert len({output.token_ids for output in outputs}) > 1


def test_prompt_logprobs_are_the_same_warm_and_cold(engine: Engine) -> None:
    prompt = list(range(60, 90))
    params = SamplingParams(max_tokens=2, temperature=0, prompt_logprobs=2, logprobs=1)
    [cold] = engine.generate([prompt], params)
    [warm] = engine.generate([prompt], params)
    assert [entry.token for entry in cold.prompt_logprobs] == prompt[1:]
    assert all(len(entry.top) == 2 for entry in cold.prompt_logprobs)
    assert warm.cached_tokens == 0  # their logits are wanted, so they are computed
    for one, two in zip(cold.prompt_logprobs, warm.prompt_logprobs, strict=True):
        assert one.logprob == pytest.approx(two.logprob, abs=1e-5)
    assert len(cold.logprobs) == 2


@pytest.mark.slow
def test_prompt_logprobs_survive_chunks_and_retraction(folder: Path) -> None:
    prompts = [list(range(60 + index, 90 + index)) for index in range(4)]
    params = SamplingParams(max_tokens=20, temperature=0, prompt_logprobs=0, ignore_eos=True)
    with Engine(str(folder), kv_tokens=2_000) as engine:
        whole = engine.generate(prompts, params)
    with Engine(
        str(folder), kv_tokens=96, chunked_prefill_size=7, schedule_conservativeness=0.0
    ) as engine:
        pieces = engine.generate(prompts, params)
        assert engine.stats().retractions > 0
    for one, two in zip(whole, pieces, strict=True):
        assert one.token_ids == two.token_ids
        assert [item.token for item in one.prompt_logprobs] == [
            item.token for item in two.prompt_logprobs
        ]
        for left, right in zip(one.prompt_logprobs, two.prompt_logprobs, strict=True):
            assert left.logprob == pytest.approx(right.logprob, abs=1e-5)


def test_streams_are_deltas_that_join(engine: Engine) -> None:
    [whole] = engine.generate("hello", GREEDY)

    async def read() -> list[radixlm.RequestOutput]:
        return [output async for output in engine.stream("hello", GREEDY)]

    joined = radixlm.RequestOutput.joined(asyncio.run(read()))
    assert joined.token_ids == whole.token_ids
    assert joined.text == whole.text
    assert joined.finish_reason is FinishReason.LENGTH


def test_shared_keys_and_values_are_read_once(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2 layers' keys and values of the shared prompt are read by 64 answers at once: not because
    it pays in so small a model.
    """
    monkeypatch.setitem(backends.SHARING, torch.float32, (1, 0, 1))
    prompts = [[*[7] * 400, own] for own in range(64)]
    with Engine(str(folder), dtype="float32", kv_tokens=4_000) as engine:
        engine.generate(prompts, GREEDY)
        stats = engine.stats()
        assert 0 < stats.kv_bytes_read < stats.kv_bytes_of_rows / 4


def test_a_list_is_run_depth_first_whatever_its_order(folder: Path) -> None:
    families = [[family] * 150 for family in range(1, 5)]
    prompts = [[*family, 10 + own] for own in range(6) for family in families]
    with Engine(
        str(folder), kv_tokens=400, schedule_policy="fcfs", max_running_requests=2
    ) as engine:
        outputs = engine.generate(prompts, GREEDY)
        assert [out.prompt_tokens for out in outputs] == [151] * 24
        # In the list's own order the pool, which holds two families, would lose each in between.
        assert sum(out.cached_tokens for out in outputs) == 4 * 5 * 150


def test_pins_and_pictures_of_the_async_engine(folder: Path) -> None:
    async def use() -> None:
        engine = AsyncEngine.from_config(
            EngineConfig(model=str(folder), kv_tokens=500, max_pinned_tokens=100)
        )
        await engine.generate([5] * 40, GREEDY, tenant="me", priority=3)
        pin = await engine.pin([5] * 30)
        assert sum(len(node.tokens) for node in (await engine.snapshot()).nodes) == 45
        assert engine.stats().kv_pinned == 30
        await engine.unpin(pin.id)
        with pytest.raises(PinError):
            await engine.unpin(pin.id)
        await engine.close()

    asyncio.run(use())


@pytest.mark.slow
def test_async_engine(folder: Path) -> None:
    async def use() -> None:
        engine = AsyncEngine.from_config(EngineConfig(model=str(folder), kv_tokens=500))
        outputs = await asyncio.gather(
            *(engine.generate([*range(40), index], GREEDY) for index in range(4))
        )
        assert sum(output.cached_tokens for output in outputs) == 3 * 40
        assert await engine.flush_cache()
        engine.health()
        await engine.close()
        with pytest.raises(radixlm.core.errors.EngineDeadError, match="shut down"):
            engine.health()

    asyncio.run(use())


@pytest.mark.parametrize(
    ("prompt", "params", "error", "message"),
    [
        ("", GREEDY, InvalidRequestError, "prompt is empty"),
        ([], GREEDY, InvalidRequestError, "prompt is empty"),
        ([512], GREEDY, InvalidRequestError, "token id 512.*end at 511"),
        ([-1], GREEDY, InvalidRequestError, "got -1"),
        ([1.5], GREEDY, InvalidRequestError, "integers"),
        ([1] * 300, GREEDY, RequestTooLargeError, "length is 200 .*KV pool.*requested 301 tokens"),
        (
            [1] * 150,
            SamplingParams(max_tokens=51),
            RequestTooLargeError,
            "requested 201.*tokens 51",
        ),
        ([1], SamplingParams(logit_bias={600: 1.0}), InvalidRequestError, "logit_bias.*600"),
        (
            [1],
            SamplingParams(min_tokens=1, stop_token_ids=frozenset(range(512))),
            InvalidRequestError,
            "every one of the model's 512 tokens",
        ),
    ],
)
def test_bad_prompts_are_refused_before_they_cost_anything(
    folder: Path, prompt: object, params: SamplingParams, error: type[Exception], message: str
) -> None:
    with Engine(str(folder), kv_tokens=200) as engine:
        with pytest.raises(error, match=message):
            engine.generate([prompt], params)  # type: ignore[list-item]
        assert engine.stats().kv_free == 200
        assert engine.generate([[1, 2]], GREEDY)[0].finish_reason is FinishReason.LENGTH


@pytest.mark.slow
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(repetition_penalty=0.01, presence_penalty=-2, frequency_penalty=-2),
        SamplingParams(repetition_penalty=10, temperature=1e-300, top_p=1e-300, min_p=1),
        SamplingParams(temperature=100, logit_bias=dict.fromkeys(range(512), -100.0)),
        SamplingParams(min_tokens=2, ignore_eos=True, stop_token_ids=frozenset(range(1, 512))),
    ],
)
def test_no_parameter_that_is_allowed_ends_the_engine(
    engine: Engine, params: SamplingParams
) -> None:
    [output] = engine.generate([[1, 2, 3]], params)
    assert output.token_ids


def test_longer_than_the_context(folder: Path) -> None:
    with (
        Engine(str(folder), kv_tokens=500, context_length=64) as engine,
        pytest.raises(RequestTooLargeError, match="context length is 64 tokens"),
    ):
        engine.generate([[1] * 64], GREEDY)


@pytest.mark.parametrize(
    ("model", "flags", "error", "message"),
    [
        ("/no/such/folder", {}, ModelError, "no folder '/no/such/folder'"),
        (None, {"device": "tpu"}, ConfigError, "tpu"),
        (None, {"device": "xpu"}, ConfigError, "only cpu and cuda"),
        (None, {"context_length": 10**9}, ConfigError, "more than the model's"),
        (None, {"kv_tokens": 10, "page_size": 16}, ConfigError, "holds no page of 16"),
        (None, {"kv_tokens": 10**13}, ConfigError, "no memory for a KV pool of 10000000000000"),
        (None, {"kv_token": 10}, ConfigError, "unknown flag 'kv_token'"),
    ],
)
def test_bad_flags_say_what_is_wrong(
    folder: Path, model: str | None, flags: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Engine(model or str(folder), **flags)


def test_mixed_lists_are_refused(engine: Engine) -> None:
    with pytest.raises(InvalidRequestError, match="not both"):
        engine.generate([1, "a"], GREEDY)  # type: ignore[list-item]


def test_what_a_request_has_not_is_refused(engine: Engine) -> None:
    with pytest.raises(TypeError, match="no field 'max_tokens', 'seed'"):
        engine.generate("hello", GREEDY, seed=3, max_tokens=5)  # type: ignore[call-arg]
    [answer] = engine.generate("hello", GREEDY, namespace=None, request_id=None)
    assert answer.token_ids


def test_public_names_are_there() -> None:
    stub = Path(radixlm.__file__).with_suffix(".pyi").read_text()
    assert len(radixlm.__all__) == stub.count(" as ")
    for name in radixlm.__all__:
        exported = getattr(radixlm, name)
        assert getattr(exported, "__name__", name) == name  # values have no name of their own
    assert radixlm.__version__
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = radixlm.Nothing


def test_threads_of_one_engine_are_not_the_next_ones() -> None:
    before = torch.get_num_threads()
    for threads in (before + 1, 1):
        with Engine(kv_tokens=500, threads=threads) as engine:
            assert engine.info.threads == threads
            [output] = engine.generate(["Hello"], SamplingParams(max_tokens=2))
            assert output.finish_reason is not None
            assert torch.get_num_threads() == before
