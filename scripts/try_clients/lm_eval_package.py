"""lm-eval over HTTP against lm-eval's own `hf` backend on the same folder: equal scores."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from scripts.try_clients.outcome import Outcome
from scripts.try_clients.server import KEY, MODEL, Served
from scripts.try_clients.tasks import CHAT, CHOOSE, COMPLETE, write_tasks

Sample = dict[str, Any]
Samples = dict[str, list[Sample]]

# Two float32 implementations differ by about 1e-5 in a sum of log-probabilities.
TOLERANCE = 1e-3
_SECONDS = 600
_LENGTH = 2048


class LmEval:
    """Scores the same documents both ways. The methods raise AssertionError where they differ.

    work: where it may write. The reference is computed when it is asked for first.
    """

    def __init__(self, server: Served, work: Path) -> None:
        self._server = server
        self._work = work
        self._common = f"model={MODEL},num_concurrent=4,max_length={_LENGTH}"
        tasks = work / "tasks"
        tasks.mkdir()
        write_tasks(tasks)

    def completions(self, backend: str) -> Outcome:
        """backend: whose tokenizer is used; `remote` is the server's own, by /tokenize."""
        # That backend alone does not find the key in the environment.
        folder = f"tokenizer={self._server.folder}"
        more = f"auth_token={KEY}" if backend == "remote" else folder
        place = f"base_url={self._server.v1}/completions,tokenizer_backend={backend},{more}"
        got = self._run(
            f"completions-{backend}",
            "local-completions",
            f"{self._common},{place}",
            [CHOOSE, COMPLETE],
            ["--batch_size", "8"],
        )
        return _compared(f"local-completions, {backend} tokenizer", self._completions_of_hf, got)

    def chat(self) -> Outcome:
        """By /v1/chat/completions; the server's own template."""
        place = f"base_url={self._server.v1}/chat/completions"
        got = self._run(
            "chat",
            "local-chat-completions",
            f"{self._common},{place}",
            [CHAT],
            ["--apply_chat_template"],
        )
        return _compared("local-chat-completions", self._chat_of_hf, got)

    @cached_property
    def _completions_of_hf(self) -> Samples:
        return self._hf("hf", [CHOOSE, COMPLETE])

    @cached_property
    def _chat_of_hf(self) -> Samples:
        return self._hf("hf-chat", [CHAT], "--apply_chat_template")

    def _hf(self, name: str, tasks: Sequence[str], *more: str) -> Samples:
        place = f"pretrained={self._server.folder},dtype=float32,max_length={_LENGTH}"
        return self._run(name, "hf", place, tasks, ["--device", "cpu", "--batch_size", "8", *more])

    def _run(
        self, name: str, model: str, arguments: str, tasks: Sequence[str], more: Sequence[str]
    ) -> Samples:
        """Each task's samples, in the documents' order. Raises RuntimeError with the last lines."""
        out = self._work / name
        command = [
            str(Path(sys.executable).with_name("lm-eval")),
            *("run", "--model", model, "--model_args", arguments, "--tasks", *tasks),
            *("--include_path", str(self._work / "tasks")),
            *("--output_path", str(out), "--log_samples", *more),
        ]
        # Its caches go where the rest goes; nothing is to be fetched from anywhere.
        around = {
            **os.environ,
            "OPENAI_API_KEY": KEY,
            "HF_HOME": str(self._work / "hf-home"),
            "HF_HUB_OFFLINE": "1",
            "HF_DATASETS_OFFLINE": "1",
        }
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_SECONDS, env=around, check=False
        )
        if done.returncode:
            last = done.stderr[-800:]
            raise RuntimeError(f"lm-eval {model} ended with {done.returncode}:\n{last}")
        return {task: _samples(out, task) for task in tasks}


def _samples(out: Path, task: str) -> list[Sample]:
    (file,) = out.glob(f"*/samples_{task}_*.jsonl")
    samples = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return sorted(samples, key=lambda sample: int(sample["doc_id"]))


def _compared(name: str, hf: Samples, got: Samples) -> Outcome:
    numbers: dict[str, float | int | str] = {}
    for task, samples in got.items():
        short = task.removeprefix("radixlm_")
        metric = "acc" if task == CHOOSE else "exact_match"
        expected = hf[task]
        assert len(samples) == len(expected) >= 40
        numbers[f"{short}_{metric}"] = _score(samples, metric)
        numbers[f"{short}_{metric}_hf"] = _score(expected, metric)
        numbers[f"{short}_documents"] = len(samples)
        if task == CHOOSE:
            numbers["largest_logprob_difference"] = _largest_difference(samples, expected)
        else:
            texts = [sample["filtered_resps"] for sample in samples]
            assert texts == [sample["filtered_resps"] for sample in expected], f"{task}: other text"
        assert _scores(samples, metric) == _scores(expected, metric), f"{task}: other scores"
    return Outcome(
        client=f"lm-eval: {name}",
        version=version("lm_eval"),
        did=f"{', '.join(got)} against hf, float32",
        numbers=numbers,
    )


def _scores(samples: list[Sample], metric: str) -> list[float]:
    return [float(sample[metric]) for sample in samples]


def _score(samples: list[Sample], metric: str) -> float:
    scores = _scores(samples, metric)
    return round(sum(scores) / len(scores), 4)


def _largest_difference(samples: list[Sample], expected: list[Sample]) -> float:
    """Of the log-likelihoods, which must agree on what is greedy too."""
    largest = 0.0
    for sample, other in zip(samples, expected, strict=True):
        for (value, greedy), (right, greedy_hf) in zip(
            sample["filtered_resps"], other["filtered_resps"], strict=True
        ):
            assert greedy == greedy_hf, f"greedy or not: {sample['doc']}"
            largest = max(largest, abs(float(value) - float(right)))
    assert largest <= TOLERANCE, f"log-likelihoods differ by {largest}"
    return float(f"{largest:.2g}")
