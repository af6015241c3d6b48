"""LongRoPE (Phi-3 to 4): each request turns its keys by the factors of its own length, as
transformers does, and none finds those that were turned by the others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from radixlm import Engine, RequestOutput, SamplingParams
from radixlm.testing.reference import make_checkpoint

ORIGINAL = 96
STEPS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    long = {"short_factor": [1.0 + 0.05 * i for i in range(6)]}
    long |= {"long_factor": [1.0 + 0.6 * i for i in range(6)]}
    made = make_checkpoint(
        tmp_path_factory.mktemp("phi"),
        "phi3",
        original_max_position_embeddings=ORIGINAL,
        max_position_embeddings=512,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.75,
            **long,
        },
    )
    path = made / "config.json"
    sizes = {"original_max_position_embeddings": ORIGINAL}
    path.write_text(json.dumps(json.loads(path.read_text()) | sizes))
    return made


PROMPT = torch.randint(3, 250, (300,), generator=torch.Generator().manual_seed(7)).tolist()
# Short ones, those that end where the original length does, those that outgrow it, and long ones.
LENGTHS = (20, ORIGINAL - STEPS, ORIGINAL - 3, ORIGINAL, ORIGINAL + 1, 200)


@pytest.fixture(scope="module")
def right(folder: Path) -> dict[int, list[int]]:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = {}
    for length in LENGTHS:
        ids = PROMPT[:length]
        with torch.no_grad():
            for _ in range(STEPS):
                logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits
                ids = [*ids, int(logits[0, -1].argmax())]
        found[length] = ids[length:]
    return found


def greedy(engine: Engine, lengths: Sequence[int] = LENGTHS) -> dict[int, RequestOutput]:
    params = SamplingParams(max_tokens=STEPS, temperature=0, ignore_eos=True)
    answers = engine.generate([PROMPT[:length] for length in lengths], params)
    return dict(zip(lengths, answers, strict=True))


def tokens(answers: dict[int, RequestOutput]) -> dict[int, list[int]]:
    return {length: list(answer.token_ids) for length, answer in answers.items()}


def made(folder: Path, **flags: object) -> Engine:
    return Engine(str(folder), dtype="float32", kv_tokens=2_000, threads=1, **flags)


@pytest.fixture(params=[{}, {"chunked_prefill_size": 16}, {"page_size": 8}], ids=str)
def engine(folder: Path, request: pytest.FixtureRequest) -> Iterator[Engine]:
    with made(folder, **request.param) as engine:
        yield engine


def test_short_and_long_prompts_at_once_cold_and_warm(
    engine: Engine, right: dict[int, list[int]]
) -> None:
    assert tokens(greedy(engine)) == right
    warm = greedy(engine)
    assert tokens(warm) == right
    assert all(warm[length].cached_tokens > length // 2 for length in LENGTHS)


def test_a_long_prompt_takes_nothing_from_a_short_one(
    folder: Path, right: dict[int, list[int]]
) -> None:
    with made(folder) as engine:
        short = ORIGINAL - STEPS
        assert tokens(greedy(engine, [short]))[short] == right[short]
        [long] = greedy(engine, [200]).values()
        assert long.cached_tokens == 0
        assert list(long.token_ids) == right[200]
        assert engine.pin(PROMPT[:200]).tokens == 200
        assert engine.pin(PROMPT[:ORIGINAL]).tokens == short


def test_a_request_that_outgrows_the_length_is_computed_anew(
    folder: Path, right: dict[int, list[int]]
) -> None:
    with made(folder) as engine:
        assert tokens(greedy(engine, [ORIGINAL - 3])) == {ORIGINAL - 3: right[ORIGINAL - 3]}
        cached = [greedy(engine, [length])[length].cached_tokens for length in (200, ORIGINAL - 2)]
        assert cached == [ORIGINAL - 3, ORIGINAL - 3]


def test_a_context_that_is_never_long_has_one_table(
    folder: Path, right: dict[int, list[int]]
) -> None:
    with made(folder, context_length=ORIGINAL) as engine:
        lengths = (20, ORIGINAL - STEPS)
        assert tokens(greedy(engine, lengths)) == {each: right[each] for each in lengths}
