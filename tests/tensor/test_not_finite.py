"""A model that gives NaN for one token: whose prompt has it fails, and nobody else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from radixlm import Engine, Namespace, RequestOutput, SamplingParams
from radixlm.assembly import loading
from radixlm.attention.torch_backend import TorchBackend
from radixlm.core.keys import as_key
from radixlm.core.request import FinishReason
from radixlm.engine.mailbox import ThreadMailbox
from radixlm.memory.pools import KVPool
from radixlm.runner.model_runner import ModelRunner
from radixlm.testing.checkpoints import write_random_checkpoint

SHARED = list(range(100, 150))
BROKEN = 7
GOOD = [*SHARED, 8]
BAD = [*SHARED, BROKEN, *range(60, 90)]
GREEDY = SamplingParams(max_tokens=5, temperature=0, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint("tiny", tmp_path_factory.mktemp("m") / "tiny", dtype="float32")


def _torch_backend(
    pool: KVPool, n_heads: int, *, windows: Sequence[int | None], cap: float, deterministic: bool
) -> TorchBackend:
    return TorchBackend(pool, n_heads, windows=windows, cap=cap)


@pytest.fixture(params=["cpu", "torch"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch":
        monkeypatch.setattr("radixlm.attention.backends.CpuBackend", _torch_backend)


@pytest.fixture
def runners(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, KVPool]]:
    """The model and the pool of each runner, in order."""
    parts: list[tuple[Any, KVPool]] = []

    class Recorded(ModelRunner):
        def __init__(self, model: Any, pool: KVPool, *rest: Any, **options: Any) -> None:
            parts.append((model, pool))
            super().__init__(model, pool, *rest, **options)

    monkeypatch.setattr(loading, "ModelRunner", Recorded)
    return parts


@pytest.fixture
def model(runners: list[tuple[Any, KVPool]], engine: Engine) -> Any:
    [(model, _)] = runners
    return model


@pytest.fixture(params=["auto", "int8"])
def kept(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(
    folder: Path, backend: None, kept: str, runners: list[tuple[Any, KVPool]]
) -> Iterator[Engine]:
    flags: dict[str, Any] = {"chunked_prefill_size": 24, "kv_cache_dtype": kept}
    with Engine(str(folder), kv_tokens=2_000, **flags) as made:
        yield made
        stats = made.stats()
        assert stats.leaks == 0
        assert stats.kv_free + stats.kv_evictable == stats.kv_capacity


def _together(engine: Engine, prompts: list[list[int]], *params: Any) -> list[RequestOutput]:
    requests = [
        engine.client.processor.ready(engine.request(prompt, own))
        for prompt, own in zip(prompts, params or [GREEDY] * len(prompts), strict=True)
    ]
    client, parts = engine.client, {request.request_id: [] for request in requests}
    mailbox = ThreadMailbox()
    client.submit(requests, mailbox)
    left = len(requests)
    while left:
        output = mailbox.get()
        parts[output.request_id].append(output)
        left -= output.finished
    return [RequestOutput.joined(items) for items in parts.values()]


class _Broken:
    """An embedding of which one token's row is not what it was."""

    def __init__(self, inner: Any, value: float) -> None:
        self.inner = inner
        self._value = value

    def __call__(self, token_ids: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
        rows = self.inner(token_ids, out)
        rows[token_ids == BROKEN] = self._value
        return rows


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_only_the_request_whose_numbers_are_none_fails(
    engine: Engine, model: Any, value: float
) -> None:
    wanted, healthy = engine.generate([GOOD, BAD], GREEDY)
    engine.flush_cache()
    model.embedding = _Broken(model.embedding, value)
    good, bad, drawn = _together(
        engine, [GOOD, BAD, BAD], GREEDY, GREEDY, replace(GREEDY, temperature=1)
    )
    assert good.token_ids == wanted.token_ids
    for failed in (bad, drawn):
        assert failed.finish_reason is FinishReason.ERROR
        assert failed.token_ids == ()
        assert "not finite" in str(failed.error)
    # What it computed before is as good as anybody's; the rest, two chunks of it, is nobody's.
    cached = engine.client.ask(lambda core: core.cache.explain(as_key(BAD), Namespace())).result()
    assert cached.report.cached == len(SHARED)
    model.embedding = model.embedding.inner
    [again] = engine.generate([BAD], GREEDY)
    assert again.cached_tokens == len(SHARED)
    assert again.token_ids == healthy.token_ids


def test_a_prompt_whose_log_probabilities_are_none_fails(engine: Engine, model: Any) -> None:
    model.embedding = _Broken(model.embedding, float("nan"))
    scored = replace(GREEDY, prompt_logprobs=1, max_tokens=1)
    good, bad = _together(engine, [GOOD, BAD], replace(GREEDY, logprobs=2), scored)
    assert len(good.logprobs) == 5
    assert bad.finish_reason is FinishReason.ERROR


def test_what_nobody_wrote_is_never_read(engine: Engine, runners: list[tuple[Any, KVPool]]) -> None:
    """So what a failed request has left behind in a slot harms nobody who is given it."""
    prompts = [[*SHARED[:n], n, 3] for n in (3, 17, 31, 50)]
    wanted = engine.generate(prompts, GREEDY)
    engine.flush_cache()
    [(_, pool)] = runners
    for part in pool.scales if pool.coded else (*pool.keys, *pool.values):
        part.fill_(float("nan"))
    assert [o.token_ids for o in engine.generate(prompts, GREEDY)] == [o.token_ids for o in wanted]
