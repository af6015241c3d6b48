"""The engine gives transformers' greedy tokens in every setting (benchmarks/parity.py: more)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.parity import (
    SETTINGS,
    Reference,
    Setting,
    largest_logit_difference,
    make_prompts,
    reference,
    run_setting,
)
from tests.reference import ARCHITECTURES, load_reference, make_checkpoint

PROMPTS = make_prompts(16, 320)
STEPS = 24
# One of each kind.
QUICK = {
    "cache off",
    "cache on, warm",
    "chunked prefill 16",
    "page size 16, warm",
    "namespaces",
    "small pool, pages of 16",
    "preemption",
}


@pytest.fixture(
    scope="module",
    params=[
        "llama",
        *(pytest.param(name, marks=pytest.mark.slow) for name in ARCHITECTURES if name != "llama"),
    ],
)
def checkpoint(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Reference]:
    folder = make_checkpoint(tmp_path_factory.mktemp("model") / request.param, request.param)
    return folder, reference(load_reference(folder), PROMPTS, STEPS)


@pytest.mark.parametrize(
    "setting",
    [
        pytest.param(
            setting, id=setting.name, marks=[] if setting.name in QUICK else [pytest.mark.slow]
        )
        for setting in SETTINGS
    ],
)
def test_same_greedy_tokens(checkpoint: tuple[Path, Reference], setting: Setting) -> None:
    folder, expected = checkpoint
    outcome = run_setting(folder, setting, PROMPTS, expected, "cpu")
    assert outcome.different == 0
    assert outcome.equal + outcome.ties == len(PROMPTS)
    assert (outcome.retractions > 0) == setting.retracts


def test_same_logits(checkpoint: tuple[Path, Reference]) -> None:
    folder, _ = checkpoint
    assert largest_logit_difference(folder, PROMPTS[:4], "cpu") <= 1e-4
