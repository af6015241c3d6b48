"""`radixlm batch --replicas`: the command over Ray Serve."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ray")

PROGRAM = [sys.executable, "-c", "from radixlm.cli.start import main; main()"]
TALE = "went to the market and bought apples, pears, plums, nuts and a loaf of bread" * 2


@pytest.mark.slow
def test_each_replica_computes_a_part_of_the_tree(tmp_path: Path) -> None:
    prompts = [f"{name} {TALE}, and {n}" for n in range(20) for name in ("Ann", "Zoe")]
    lines = [
        {
            "custom_id": f"{n}",
            "url": "/v1/completions",
            "body": {"prompt": prompt, "max_tokens": 4, "cache_report": True},
        }
        for n, prompt in enumerate(prompts)
    ]
    source, output = tmp_path / "in", tmp_path / "out"
    source.write_text("\n".join(map(json.dumps, lines)))
    flags = ["--replicas", "2", "--kv-tokens", "3000", "--threads", "1"]
    asked = [*PROGRAM, "batch", str(source), str(output), *flags]
    done = subprocess.run(asked, capture_output=True, text=True)  # noqa: S603
    assert done.returncode == 0, done.stderr
    assert "40 lines answered, 0 with an error" in done.stderr
    # Of both replicas, all of them: what is not of a prefix that one has computed is a few tokens.
    assert int(done.stderr.split("% of ")[1].split(" ")[0].replace(",", "")) > 1_000
    homes: dict[str, set[str]] = {"Ann": set(), "Zoe": set()}
    for each in map(json.loads, output.read_text().splitlines()):
        name = prompts[int(each["custom_id"])][:3]
        homes[name].add(each["response"]["body"]["cache_report"]["replica"])
    assert [len(each) for each in homes.values()] == [1, 1]
    assert homes["Ann"] != homes["Zoe"]
