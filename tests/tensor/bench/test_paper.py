"""`radixlm bench paper` on a tiny model."""

from __future__ import annotations

import json
import math
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from radixlm.bench.bench_commands import command
from radixlm.bench.bench_reports import draw, share_of_bound, show, summary
from radixlm.bench.paper_run import MODES, Setup, WorkloadResult, run
from radixlm.bench.tables import check_picture
from radixlm.bench.workloads import WORKLOADS, SharedPrompt, Workload
from radixlm.core.errors import ConfigError
from radixlm.testing.checkpoints import SHAPES, write_random_checkpoint

FIELDS = [
    *("workload", "mode", "requests", "prompt_tokens", "cached_tokens", "computed_tokens"),
    *("hit_rate", "best_hit_rate", "wall_s", "walls_s", "output_tokens_per_s"),
    *("ttft_ms_p50", "ttft_ms_p99", "itl_ms_p50", "itl_ms_p99"),
    *("pool_tokens", "seed", "shape", "dtype"),
]


@pytest.fixture(scope="module")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Setup:
    folder = write_random_checkpoint("tiny", tmp_path_factory.mktemp("m") / "t", dtype="float32")
    return Setup(
        model=str(folder), shape="tiny", vocab_size=SHAPES["tiny"]["vocab_size"], scale=0.04
    )


def measure(name: str, setup: Setup, *modes: str) -> dict[str, WorkloadResult]:
    workload = WORKLOADS[name]
    return {row.mode: row for row in run([(workload, setup.plan(workload))], modes, setup)}


QUICK = {"mmlu-few-shot", "warm-prefix"}


@pytest.mark.parametrize(
    "name",
    [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in WORKLOADS],
)
def test_every_workload_runs(name: str, setup: Setup) -> None:
    rows = measure(name, setup, "off", "lpm")
    off, lpm = rows["off"], rows["lpm"]
    planned = setup.plan(WORKLOADS[name])
    for row in (off, lpm):
        assert list(asdict(row)) == FIELDS
        assert row.requests == planned.requests - WORKLOADS[name].unmeasured
        assert row.wall_s > 0
        assert row.output_tokens_per_s > 0
        assert 0 < (row.ttft_ms_p50 or 0) <= (row.ttft_ms_p99 or 0) <= 1_000 * row.wall_s + 1
        assert (row.itl_ms_p50 is None) == (name == "hellaswag-few-shot")
        assert 0 <= row.hit_rate <= row.best_hit_rate + 1e-6
        assert row.cached_tokens == pytest.approx(row.hit_rate * row.prompt_tokens, abs=1)
    assert off.cached_tokens == 0
    assert off.computed_tokens >= off.prompt_tokens
    assert lpm.pool_tokens == off.pool_tokens
    if name != "tree-search":
        assert lpm.hit_rate >= 0.96 * lpm.best_hit_rate


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_every_mode_stays_below_the_bound(mode: str, setup: Setup) -> None:
    """Also when the pool holds far less than what is sent through it."""
    small = replace(setup, scale=0.1, pool=0.3)
    row = measure("rag", small, mode)[mode]
    assert row.hit_rate <= row.best_hit_rate
    assert (row.cached_tokens == 0) == (mode == "off")
    assert row.pool_tokens <= small.plan(WORKLOADS["rag"]).pool_tokens(0.3)


@pytest.mark.slow
def test_pages_of_sixteen_share_less(setup: Setup) -> None:
    """40 tokens are shared, two whole pages are 32."""
    workload = Workload("pages", SharedPrompt(count=6, shared=40, own=20, out=2))
    plan = setup.plan(workload)
    rows = {
        row.mode: row
        for row in run([(workload, plan)], ("lpm", "page16"), replace(setup, scale=1.0))
    }
    assert rows["lpm"].cached_tokens == 5 * 40
    assert rows["page16"].cached_tokens == 5 * 32
    assert rows["page16"].best_hit_rate == rows["lpm"].best_hit_rate


def test_the_first_warm_request_is_not_counted(setup: Setup) -> None:
    row = measure("warm-prefix", replace(setup, scale=0.2), "lpm")["lpm"]
    assert row.requests == 3
    assert row.cached_tokens == 3 * 1_000
    assert row.computed_tokens == 3 * (32 + 7)


@pytest.mark.slow
def test_tree_search_always_has_a_quarter(setup: Setup) -> None:
    big = replace(setup, scale=0.3, pool=None)
    plan = big.plan(WORKLOADS["tree-search"])
    row = measure("tree-search", big, "lpm")["lpm"]
    assert row.pool_tokens == plan.pool_tokens(0.25) < plan.distinct / 2


@pytest.mark.slow
def test_command_prints_saves_and_draws(tmp_path: Path) -> None:
    lines, picture = tmp_path / "rows.jsonl", tmp_path / "paper.png"
    lines.write_text("old\n")
    arguments = ["paper", "--shape", "tiny", "--scale", "0.04", "--seed", "3", "--rounds", "2"]
    arguments += [
        "--only",
        "warm-prefix",
        "--only",
        "no-sharing",
        "--modes",
        "off",
        "--modes",
        "lpm",
    ]
    arguments += ["--json", str(lines), "--picture", str(picture)]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    rows = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(row["workload"], row["mode"], row["seed"]) for row in rows] == [
        ("warm-prefix", "off", 3),
        ("warm-prefix", "lpm", 3),
        ("no-sharing", "off", 3),
        ("no-sharing", "lpm", 3),
    ]
    assert all(list(row) == FIELDS for row in rows)
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert "TTFT" in result.stdout
    assert "what the rounds differ" in result.stdout
    assert all(len(row["walls_s"]) == 2 for row in rows)
    last = json.loads(result.stdout.splitlines()[-1])
    assert last["warm_ttft_off_over_lpm"] > 0
    assert last["share_of_bound"] == {"lpm": None}


ROW = WorkloadResult(
    workload="mmlu-few-shot",
    mode="off",
    requests=1,
    prompt_tokens=100,
    cached_tokens=0,
    computed_tokens=100,
    hit_rate=0.0,
    best_hit_rate=0.8,
    wall_s=8.0,
    walls_s=(8.0,),
    output_tokens_per_s=1.0,
    ttft_ms_p50=9.0,
    ttft_ms_p99=9.0,
    itl_ms_p50=None,
    itl_ms_p99=None,
    pool_tokens=1_000,
    seed=0,
    shape="tiny",
    dtype="float32",
)


@pytest.mark.slow
def test_modes_take_turns_and_the_middle_round_is_reported(setup: Setup) -> None:
    workload, order = WORKLOADS["warm-prefix"], []
    rows = run(
        [(workload, replace(setup, scale=0.1).plan(workload))],
        ("off", "lpm"),
        replace(setup, scale=0.1),
        rounds=3,
        started=lambda name: order.append(name.rpartition(" ")[2]),
    )
    for row in rows:
        assert row.wall_s == sorted(row.walls_s)[1]
    assert order == ["off", "lpm", "lpm", "off", "off", "lpm"]


def test_a_speedup_that_is_noise_stands_in_brackets(capsys: pytest.CaptureFixture[str]) -> None:
    off = replace(ROW, walls_s=(8.0, 8.0, 8.0))
    fast = replace(ROW, mode="lpm", wall_s=2.0, walls_s=(2.0, 2.1, 2.0))
    same = replace(ROW, mode="fcfs", wall_s=7.9, walls_s=(7.5, 8.5, 7.9))
    show("title", [off, fast, same])
    said = capsys.readouterr().out
    assert " 4.00x" in said
    assert "(1.01x)" in said
    assert "--rounds" not in said
    show("title", [ROW])
    assert "--rounds" in capsys.readouterr().out


@pytest.mark.slow
def test_summary_is_of_the_papers_workloads(tmp_path: Path) -> None:
    rows = [
        ROW,
        replace(ROW, mode="lpm", hit_rate=0.8, wall_s=2.0),
        replace(ROW, mode="fcfs", hit_rate=0.4, wall_s=4.0),
        replace(ROW, workload="rag"),
        replace(ROW, workload="rag", mode="lpm", hit_rate=0.6, wall_s=8.0),
        replace(ROW, workload="no-sharing", best_hit_rate=1e-5),
        replace(ROW, workload="no-sharing", mode="lpm", best_hit_rate=1e-5, wall_s=16.0),
        replace(ROW, workload="warm-prefix"),
        replace(ROW, workload="warm-prefix", mode="lpm", wall_s=1.0, ttft_ms_p50=1.5),
    ]
    assert share_of_bound(rows[5]) is None
    assert summary(rows) == {
        "workload": "paper",
        "shape": "tiny",
        "dtype": "float32",
        "workloads": 3,
        "share_of_bound": {"lpm": 0.875, "fcfs": 0.5},
        "off_over_lpm": round(math.cbrt(4.0 * 1.0 * 0.5), 4),
        "off_over_lpm_by_workload": {
            "multi-turn-short": None,
            "mmlu-few-shot": 4.0,
            "batch-same-prompt": None,
            "tree-of-thought": None,
        },
        "warm_ttft_off_over_lpm": 6.0,
    }
    draw(tmp_path / "some.png", "title", rows)


def test_a_picture_that_cannot_be_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"writes a \.png"):
        check_picture(tmp_path / "paper.svg")
