"""benchmarks/language.py: what it counts, and that programs reach it on a tiny model."""

from __future__ import annotations

import json

import pytest

from benchmarks.language import Counts, count, main
from radixlm.bench.programs import BenchRequest, CompletedRequest


def finished(*prompt: int) -> CompletedRequest:
    return CompletedRequest(BenchRequest(prompt=list(prompt), out=2), [90, 91])


def test_shared_tokens_are_counted_once_and_last_ones_each_time():
    assert count([finished(1, 2, 3), finished(1, 2, 4)]) == Counts(6, 4, 4)
    assert count([finished(1, 2, 3), finished(1, 2, 3)]) == Counts(6, 4, 3)


def test_an_answer_that_a_prompt_goes_on_from_is_not_computed_again():
    assert count([finished(1, 2), finished(1, 2, 90, 5)]) == Counts(6, 3, 4)


@pytest.mark.slow
def test_forks_compute_the_fewest_and_leave_no_thread(capsys: pytest.CaptureFixture[str]):
    main(["--shape", "tiny", "--programs", "3", "--forks", "4", "--rounds", "1"])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["requests"] == 12
    assert report["computed_tokens"] == report["fewest_tokens"] == report["unique_tokens"]
    assert report["threads_after"] == report["threads_before"] < report["threads_most"]
    assert report["as_wanted"]
