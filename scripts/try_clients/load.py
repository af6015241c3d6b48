"""`aiperf`, NVIDIA's load generator, in an environment of its own: its pins are not ours."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from scripts.try_clients.environments import python_of
from scripts.try_clients.outcome import Outcome
from scripts.try_clients.server import KEY, MODEL, Served

_REQUESTS = 64
_ANSWER = 24
_SHARED = 200
_SECONDS = 300


def use_aiperf(server: Served, work: Path) -> Outcome:
    """Stream chats at it, eight at a time, under one system prompt. Raises AssertionError."""
    out = work / "aiperf"
    done = subprocess.run(
        [
            str(python_of("aiperf").with_name("aiperf")),
            *("profile", "--model", MODEL, "--url", server.url, "--api-key", KEY),
            *("--endpoint-type", "chat", "--streaming", "--concurrency", "8"),
            *("--request-count", str(_REQUESTS), "--num-dataset-entries", str(_REQUESTS)),
            *("--prompt-input-tokens-mean", "60", "--prompt-output-tokens-mean", str(_ANSWER)),
            *("--shared-system-prompt-length", str(_SHARED)),
            *("--extra-inputs", "ignore_eos:true", "--use-server-token-count"),
            *("--tokenizer", str(server.folder), "--random-seed", "7"),
            *("--ui", "none", "--no-gpu-telemetry", "--output-artifact-dir", str(out)),
        ],
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"aiperf ended with {done.returncode}:\n{done.stdout[-800:]}")
    told = json.loads((out / "profile_export_aiperf.json").read_text(encoding="utf-8"))
    answered = int(told["request_count"]["avg"])
    length = told["output_sequence_length"]["avg"]
    failed = int(told.get("error_request_count", {}).get("avg", 0))
    assert (answered, failed) == (_REQUESTS, 0), f"{answered} answered, {failed} failed"
    assert length == _ANSWER, f"answers of {length} tokens, not {_ANSWER}"
    return Outcome(
        client="aiperf",
        version=told["aiperf_version"],
        did=f"{_REQUESTS} streamed chats, 8 at a time, {_SHARED} shared tokens",
        numbers={
            "answered": answered,
            "failed": failed,
            "requests_per_second": round(told["request_throughput"]["avg"], 1),
            "first_token_p50_ms": round(told["time_to_first_token"]["p50"], 1),
            "next_token_p50_ms": round(told["inter_token_latency"]["p50"], 1),
        },
    )
