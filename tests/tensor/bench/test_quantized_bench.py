"""`radixlm bench quantized` on a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from radixlm.bench.bench_commands import command
from radixlm.bench.quantized_run import LlamaSide, bytes_held, bytes_read, load_peak
from radixlm.core.errors import ConfigError
from radixlm.models import ModelConfig
from radixlm.testing.checkpoints import SHAPES, write_random_checkpoint

TINY = SHAPES["tiny"]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_random_checkpoint("tiny", tmp_path_factory.mktemp("tiny") / "t")


@pytest.mark.slow
def test_every_format_has_figures(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Peaks are those of processes of their own, see below; here each is a number."""
    monkeypatch.setattr("radixlm.bench.quantized_command.load_peak", lambda *_: 10**6)
    path = tmp_path / "figures.json"
    arguments = ["quantized", str(tiny), "--format", "int8", "--format", "bf16", "--rounds", "2"]
    arguments += ["--answer", "3", "--prefill", "20", "--threads", "2", "--json", str(path)]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout.splitlines()[-1])
    assert json.loads(path.read_text()) == report
    assert report["gb_per_s"] > 0
    assert [row["name"] for row in report["rows"]] == ["int8", "bf16"]
    for row in report["rows"]:
        assert len(row["decode_s"]) == len(row["prefill_s"]) == 2
        assert row["decode_per_s"] == pytest.approx(1 / min(row["decode_s"]), rel=0.02)
        assert row["prefill_per_s"] == pytest.approx(20 / min(row["prefill_s"]), rel=0.02)
        assert row["decode_theirs_over_ours"] == 1
    assert report["memory"].keys() == {"int8", "bf16"}
    assert {row["peak_mb"] for row in report["memory"].values()} == {1.0}


@pytest.mark.slow
def test_the_peak_of_a_load_is_more_than_what_is_held(tiny: Path) -> None:
    assert load_peak(tiny, "int8") > bytes_held(ModelConfig.from_hf(TINY), "int8")


def test_bytes_are_those_of_codes_and_scales() -> None:
    """A tied head is read and not the embedding, which is held besides."""
    config = ModelConfig.from_hf(TINY)
    shapes = [(128, 64), (64, 64), (384, 64), (64, 192)] * 2 + [(512, 64)]
    weights = sum(outputs * inputs for outputs, inputs in shapes)
    assert bytes_read(config, "bf16") == 2 * weights
    assert bytes_read(config, "int8") == weights + 4 * sum(outputs for outputs, _ in shapes)
    assert bytes_read(config, "fp8") == bytes_read(config, "int8")
    assert bytes_read(config, "int4") == weights // 2 + 2 * weights // 32
    assert bytes_held(config, "int4") - bytes_read(config, "int4") == 2 * 512 * 64


def test_a_python_without_llama_cpp_is_named() -> None:
    side = LlamaSide(sys.executable)
    with pytest.raises(ConfigError, match="does it have llama_cpp"):
        side.ask(do="open", path="none", threads=1, context=8)
    side.close()
