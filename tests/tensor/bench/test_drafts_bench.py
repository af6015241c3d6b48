"""`radixlm bench drafts` on a tiny model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from radixlm.bench.agent_traces import read_traces
from radixlm.bench.bench_commands import command
from radixlm.bench.draft_workloads import of_trace
from radixlm.bench.drafts_run import Played
from radixlm.core.errors import ConfigError
from radixlm.core.keys import Key
from radixlm.testing.checkpoints import write_random_checkpoint

SIZES = ["--calls", "2", "--context", "40", "--answer", "12", "--streams", "1", "--streams", "2"]


def encode(text: str) -> Key:
    return np.frombuffer(text.encode(), dtype=np.uint8).astype(np.int32)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sessions in each of the two forms, which say the same again and again."""
    folder = tmp_path_factory.mktemp("traces")
    turns = [{"role": role, "content": "once more"} for role in ("user", "assistant") * 3]
    line = json.dumps({"messages": turns})
    (folder / "turns.jsonl").write_text(f"{line}\n{line}\n")
    (folder / "calls").mkdir()
    for name in ("a", "b"):
        call = json.dumps({"input": "say it: once more", "output": "once more, once more"})
        (folder / "calls" / f"{name}.jsonl").write_text(f"{call}\n")
    return folder


def test_traces_are_replayed_with_drafts_and_without(traces: Path, tmp_path: Path) -> None:
    model = write_random_checkpoint("tiny", tmp_path / "tiny")
    prompts, picture = tmp_path / "prompts.jsonl", tmp_path / "steps.png"
    prompts.write_text(json.dumps({"kind": "plain", "prompt": "hello"}) + "\n")
    arguments = ["drafts", str(model), "--format", "bf16", "--traces", str(traces), *SIZES]
    arguments += ["--prompts", str(prompts), "--algorithm", "tree", "--picture", str(picture)]
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout.splitlines()[-1])
    rows = {(row["text"], row["streams"]): row for row in report["rows"]}
    both = {"calls", "turns", "no repetition"}
    cold = {f"{name}, prompts arriving" for name in ("calls", "turns")}
    assert {text for text, streams in rows if streams == 2} == both | cold
    assert {text for text, streams in rows if streams == 1} == both | {"plain", "edit of 400 lines"}
    assert all(row["equal"] == row["calls"] for row in rows.values())
    assert rows["calls", 1]["tokens_a_step"] > 1.5
    assert rows["no repetition", 1]["tokens_a_step"] < 1.5
    # Each workload begins anew, else these answers would be known from the ones before.
    assert rows["turns", 2]["tokens_a_step"] >= rows["turns, prompts arriving", 2]["tokens_a_step"]
    assert picture.stat().st_size > 0


def test_no_stream_hears_what_another_is_to_answer(traces: Path) -> None:
    [_, (name, sessions)] = read_traces(traces, encode)
    alone = of_trace(name, sessions, 6, 1, 1000)
    [lane] = alone.lanes
    assert len(lane) == 6
    heard = [piece for part in lane for piece in part.heard]
    assert all(piece.new <= piece.tokens.size for piece in heard)
    together = of_trace(name, sessions, 6, 2, 1000)
    for session, [part] in zip(sessions, together.lanes, strict=True):
        assert np.array_equal(part.call.prompt, session[2][0])
        assert part.call.answer is not None
        text = np.concatenate((part.call.prompt, part.call.answer))
        assert all(piece.tokens.size < text.size for piece in part.heard)
    assert [len(lane) for lane in of_trace(name, sessions, 1, 2, 1000).lanes] == [1, 0]


def test_drafts_are_right_by_place() -> None:
    """Of steps that draft two, two and no tokens, of which two, none and none are right."""
    played = Played(0, 0.0, 0.0, (3, 1, 1), (2, 2, 0), ())
    assert played.right_by_place() == [50.0, 100.0]


def test_what_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "broken.jsonl").write_text('{"messages": 1}\n')
    with pytest.raises(ConfigError, match=r"broken\.jsonl is no trace"):
        list(read_traces(tmp_path, encode))
