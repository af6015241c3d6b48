"""A server's model is warm when it is ready, and nothing of the warming is left."""

from __future__ import annotations

import pytest

from radixlm.assembly import loading
from radixlm.core.config import EngineConfig
from radixlm.core.sampling import SamplingParams
from radixlm.engine import collect
from radixlm.engine.input_processor import new_request
from radixlm.runner.model_runner import ModelRunner
from radixlm.structured_output import Compiler
from radixlm.testing.checkpoints import write_random_checkpoint

GREEDY = SamplingParams(max_tokens=8, temperature=0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return str(write_random_checkpoint("tiny", tmp_path_factory.mktemp("warm") / "tiny"))


@pytest.fixture
def batches(monkeypatch):
    """How many new tokens the rows of each executed batch had."""
    seen: list[list[int]] = []
    execute = ModelRunner.execute

    def watched(runner, batch):
        seen.append([row.stop - row.start for row in batch.rows])
        return execute(runner, batch)

    monkeypatch.setattr(ModelRunner, "execute", watched)
    return seen


def answer(loaded) -> list[int]:
    request = new_request(loaded.tokenizer.encode("hello you"), GREEDY)
    [output] = collect([request], loaded.client.run([request]))
    assert output.cached_tokens == 0
    return list(output.token_ids)


@pytest.mark.slow
@pytest.mark.parametrize(
    "flags",
    [{}, {"page_size": 16}, {"kv_tokens": 40}, {"chunked_prefill_size": 3}, {"kv_tokens": 11}],
    ids=str,
)
def test_what_was_warmed_up_leaves_no_trace(folder, batches, flags):
    config = EngineConfig(model=folder, **{"kv_tokens": 1000, **flags})
    cold = loading.load(config, progress=False)
    assert not batches
    before = cold.client.stats()
    warm = loading.load(config, progress=False, warm=True)
    assert any(sum(rows) > 1 for rows in batches)
    assert any(rows[:1] == [1] for rows in batches)
    assert warm.client.stats() == before
    if before.kv_capacity > 20:
        assert answer(warm) == answer(cold)
    for loaded in (warm, cold):
        loaded.client.close()


def test_a_pool_too_small_for_any_answer_is_left_cold(folder, batches):
    loaded = loading.load(EngineConfig(model=folder, kv_tokens=2), progress=False, warm=True)
    assert not batches
    loaded.client.close()


def test_grammars_are_ready_too(folder, monkeypatch):
    compiled, submit = [], Compiler.submit

    def watched(compiler, grammar, *tenant):
        compiled.append(grammar)
        return submit(compiler, grammar, *tenant)

    monkeypatch.setattr(Compiler, "submit", watched)
    config = EngineConfig(model=folder, kv_tokens=1000)
    for warm in (False, True):
        loading.load(config, progress=False, warm=warm).client.close()
        assert bool(compiled) is warm
