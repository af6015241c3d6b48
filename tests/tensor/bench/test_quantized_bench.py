"""`radixlm bench quantized` on a tiny model."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import gguf
import pytest
from click.testing import CliRunner

from radixlm.bench.bench_commands import command
from radixlm.bench.quantized_run import (
    Growth,
    LlamaSide,
    bf16_file,
    bytes_held,
    bytes_read,
    growth,
)
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
    monkeypatch.setattr("radixlm.bench.quantized_command.growth", lambda *_: Growth(10**6, 10**6))
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
def test_a_file_is_measured_as_it_is(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixlm.bench.quantized_command.growth", lambda *_: Growth(10**6, 10**6))
    path = bf16_file(tiny, tmp_path / "tiny.gguf")
    arguments = ["quantized", str(path), "--rounds", "1", "--answer", "3", "--prefill", "20"]
    result = CliRunner().invoke(command, [*arguments, "--threads", "2"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    [row] = json.loads(result.stdout.splitlines()[-1])["rows"]
    assert row["name"] == "tiny.gguf"
    matrices = 2 * (4 * 64 * 64 + 2 * 32 * 64 + 3 * 192 * 64) + 512 * 64
    assert row["mb_read"] == pytest.approx(2 * matrices / 1e6, rel=0.1)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["a.gguf", "--format", "int8"], "measured as it is"),
        (["a.gguf", "--gguf", "Q4_0"], "measured as it is"),
        (["--shape", "tiny", "--gguf", "Q4_K_M"], "name its --llama-python"),
    ],
)
def test_files_that_can_not_be_made(
    arguments: list[str], text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("radixlm.bench.quantized_command.bandwidths", lambda _: {"read": 1.0})
    result = CliRunner().invoke(command, ["quantized", *arguments])
    assert result.exit_code == 2
    assert text in result.output


@pytest.mark.slow
def test_the_peak_of_a_load_is_more_than_what_is_held(tiny: Path) -> None:
    found = growth(tiny, {"quantization": "int8"})
    assert found.most >= found.stays > bytes_held(ModelConfig.from_hf(TINY), "int8")


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


def test_the_merge_of_a_file_is_a_word(tiny: Path, tmp_path: Path) -> None:
    fields = gguf.GGUFReader(bf16_file(tiny, tmp_path / "tiny.gguf")).fields
    words = fields["tokenizer.ggml.tokens"].contents()
    assert len(words) == TINY["vocab_size"]
    [merge] = fields["tokenizer.ggml.merges"].contents()
    assert merge.replace(" ", "") in words
