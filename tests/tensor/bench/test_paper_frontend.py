"""`radixlm bench paper --frontend` on a tiny model: programs ask what is asked without them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from radixlm.bench.bench_commands import command
from radixlm.bench.bench_reports import frontend_summary
from radixlm.bench.frontend_programs import CHANGES, make_twins, run
from radixlm.bench.paper_run import Setup
from radixlm.testing.checkpoints import SHAPES, write_random_checkpoint
from radixlm.text.tokenizer import Tokenizer
from tests.lang_support import no_threads_left


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    folder = write_random_checkpoint("tiny", tmp_path_factory.mktemp("m") / "t", dtype="float32")
    return Setup(
        model=str(folder), shape="tiny", vocab_size=SHAPES["tiny"]["vocab_size"], scale=0.1
    )


# The others take two seconds each.
QUICK = "mmlu-few-shot"


@pytest.mark.parametrize(
    "name",
    [QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in CHANGES if name != QUICK)],
)
def test_programs_ask_what_is_asked_without_them(name: str, setup: Setup) -> None:
    twins = make_twins([name], Tokenizer.load(Path(setup.model)), setup.vocab_size)
    asked = []
    [row] = run(twins, setup, 1, done=lambda: asked.append(1))
    assert row.requests == row.direct_requests == len(asked) / 2
    assert row.requests == setup.plan(twins[0].workload).requests
    assert row.prompt_tokens == row.direct_prompt_tokens
    assert 0.96 * row.best_hit_rate <= row.hit_rate <= row.best_hit_rate
    assert row.wall_s > 0
    assert row.direct_wall_s > 0
    assert no_threads_left()
    assert frontend_summary([row])["share_of_bound"][name] >= 0.96


@pytest.mark.slow
def test_command_prints_saves_and_draws(tmp_path: Path) -> None:
    lines, picture = tmp_path / "rows.jsonl", tmp_path / "frontend.png"
    arguments = ["paper", "--frontend", "--shape", "tiny", "--scale", "0.06", "--rounds", "2"]
    arguments += ["--only", "json-decoding", "--only", "mmlu-few-shot"]
    arguments += ["--json", str(lines), "--picture", str(picture)]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(row["workload"], row["rounds"]) for row in rows] == [
        ("json-decoding", 2),
        ("mmlu-few-shot", 2),
    ]
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "overhead" in result.stdout
    last = json.loads(result.stdout.splitlines()[-1])
    assert set(last["overhead"]) == {"json-decoding", "mmlu-few-shot"}


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        (["--modes", "off"], "--frontend has no --modes"),
        (["--only", "rag"], "with --frontend there is no 'rag'"),
    ],
)
def test_what_does_not_go_with_it_is_refused(more: list[str], reason: str) -> None:
    result = CliRunner().invoke(command, ["paper", "--frontend", *more])
    assert result.exit_code == 2
    assert reason in result.output
