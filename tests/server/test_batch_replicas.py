"""`radixlm batch --replicas`: the command over Ray Serve."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.batch_parts import check_homes, lines_of

pytest.importorskip("ray")

PROGRAM = [sys.executable, "-c", "from radixlm.cli.start import main; main()"]
TALE = "went to the market and bought apples, pears, plums, nuts and a loaf of bread" * 2


@pytest.mark.slow
def test_each_replica_computes_a_part_of_the_tree(tmp_path: Path) -> None:
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text(lines_of(TALE))
    flags = ["--replicas", "2", "--kv-tokens", "3000", "--threads", "1"]
    asked = [*PROGRAM, "batch", str(source), str(output), *flags]
    done = subprocess.run(asked, capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert "40 lines answered, 0 with an error" in done.stderr
    # Of both replicas, all of them: what is not of a prefix that one has computed is a few tokens.
    assert int(done.stderr.split("% of ")[1].split(" ")[0].replace(",", "")) > 1_000
    check_homes(output.read_text().splitlines())
