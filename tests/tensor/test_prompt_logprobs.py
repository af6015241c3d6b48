"""Prompt log-probabilities from a position on: the same values, and a prefix from the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from radixlm import Engine, RequestOutput, SamplingParams
from radixlm.core.batch import ScheduledBatch
from radixlm.core.errors import InvalidRequestError
from radixlm.memory.staging import Sending
from radixlm.runner.model_runner import ForwardBatch
from radixlm.testing.checkpoints import write_random_checkpoint
from tests.tensor.rows import make_row

SHARED = list(range(100, 150))
PROMPTS = [[*SHARED, *range(200 + 7 * index, 210 + 7 * index)] for index in range(4)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint("tiny", tmp_path_factory.mktemp("m") / "tiny", dtype="float32")


def scored(
    folder: Path, start: int, prompts: list[list[int]] = PROMPTS, **flags: Any
) -> list[RequestOutput]:
    """Each prompt after the other where the pool is large, all at once where it is small."""
    params = SamplingParams(
        max_tokens=45, temperature=0, ignore_eos=True, prompt_logprobs=1, logprob_start_len=start
    )
    with Engine(str(folder), **({"kv_tokens": 2_000} | flags)) as engine:
        if "kv_tokens" not in flags:
            return [engine.generate([prompt], params)[0] for prompt in prompts]
        outputs = engine.generate(prompts, params)
        assert engine.stats().retractions > 0
        return outputs


@pytest.fixture(scope="module")
def whole(folder: Path) -> list[RequestOutput]:
    return scored(folder, 0, disable_radix_cache=True)


@pytest.mark.parametrize(
    "start", [1, 51, *(pytest.param(n, marks=pytest.mark.slow) for n in (0, 2, 48, 50, 59, 60))]
)
@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"disable_radix_cache": True},
        {"page_size": 16},
        {"chunked_prefill_size": 7},
        {"kv_tokens": 130, "chunked_prefill_size": 23, "schedule_conservativeness": 0.0},
    ],
    ids=["on", "off", "page16", "chunked", "retracted"],
)
def test_they_are_those_of_the_whole_prompt(
    folder: Path, whole: list[RequestOutput], start: int, flags: Any
) -> None:
    part = scored(folder, start, **flags)
    for prompt, one, two in zip(PROMPTS, whole, part, strict=True):
        first = max(start, 1)
        assert one.token_ids == two.token_ids
        assert [entry.token for entry in two.prompt_logprobs] == prompt[first:]
        for left, right in zip(one.prompt_logprobs[first - 1 :], two.prompt_logprobs, strict=True):
            assert left.logprob == pytest.approx(right.logprob, abs=1e-5)
            assert left.top[0][0] == right.top[0][0]


@pytest.mark.slow
@pytest.mark.parametrize("start", [0, 1, 2, 49, 50, 51, 60])
def test_what_lies_before_comes_from_the_cache(folder: Path, start: int) -> None:
    """The token before the first wanted one is computed: its logits give that one's."""
    first, *others = scored(folder, start)
    assert first.cached_tokens == 0
    for other in others:
        assert other.cached_tokens == min(50, max(start - 1, 0))


def test_logits_are_computed_only_where_they_are_wanted() -> None:
    params = SamplingParams(prompt_logprobs=0, logprob_start_len=8)
    prompt = list(range(12))
    chunks = [(0, 5), (5, 7), (7, 8), (8, 12)]
    rows = [
        make_row(prompt[:stop], start=start, prompt=prompt, params=params, samples=stop == 12)
        for start, stop in chunks
    ]
    targets = []
    for row in rows:
        forward = ForwardBatch.from_scheduled(ScheduledBatch((row,)), Sending(torch.device("cpu")))
        targets.append([list(item.targets) for item in forward.prompts])
        wanted = forward.logit_rows[len(forward.sampling) :] + row.start
        assert (wanted + 1).tolist() == [token for part in targets[-1] for token in part]
    assert targets == [[], [], [[8]], [[9, 10, 11]]]


def test_a_start_that_makes_no_sense_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidRequestError, match="logprob_start_len must be an integer"):
        SamplingParams(prompt_logprobs=0, logprob_start_len=-1)
    with pytest.raises(InvalidRequestError, match="prompt_logprobs are not asked for"):
        SamplingParams(logprob_start_len=5)
    with Engine(str(folder), kv_tokens=100) as engine:
        params = SamplingParams(max_tokens=1, prompt_logprobs=0, logprob_start_len=4)
        with pytest.raises(InvalidRequestError, match="is 4, the prompt has 3 tokens"):
            engine.generate([[1, 2, 3]], params)


@pytest.mark.parametrize("flags", [{}, {"page_size": 16}, {"chunked_prefill_size": 7}])
def test_a_prompt_that_fills_the_context_is_scored(folder: Path, flags: Any) -> None:
    """The one token behind it, which nobody asked for, has no position of its own."""
    prompt = list(range(1, 101))
    scores = SamplingParams(max_tokens=1, prompt_logprobs=1)
    with Engine(str(folder), kv_tokens=2_000, context_length=100, **flags) as engine:
        for _ in range(2):
            [output] = engine.generate([prompt], scores)
            assert [entry.token for entry in output.prompt_logprobs or ()] == prompt[1:]
        for params, more in ((scores, [1]), (SamplingParams(max_tokens=1), [])):
            with pytest.raises(InvalidRequestError, match="length of the prompt to at most"):
                engine.generate([prompt + more], params)
        assert engine.stats().leaks == 0
