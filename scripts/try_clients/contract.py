"""`schemathesis`: cases made from /openapi.json, and every answer held against it."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

from rich.progress import Progress

from scripts.try_clients.outcome import Outcome
from scripts.try_clients.server import KEY, Served

# Not `positive_data_acceptance`: what two fields must be to each other no schema can say.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
    "unsupported_method",
    "allow_header_conformance",
    "missing_required_header",
    "ignored_auth",
)
# Fewer are no proof. Most are made to cover the schema, whatever is asked for.
LEAST_CASES = 10_000
# That stream never ends, and sends little where nobody does anything.
_CONFIG = """
[[operations]]
include-path = "/cache/events"
max-stream-events = 3
"""


def use_schemathesis(
    server: Served, work: Path, *, examples: int, workers: int, progress: Progress
) -> Outcome:
    """Send at least LEAST_CASES requests, right ones and wrong ones. Raises AssertionError.

    examples: of each operation, drawn at random, beyond those that cover its schema.
    """
    report = work / "schemathesis.json"
    log = work / "schemathesis.log"
    config = work / "schemathesis.toml"
    config.write_text(_CONFIG)
    command = [
        *(str(Path(sys.executable).with_name("st")), "--config-file", str(config)),
        *("run", f"{server.url}/openapi.json", "-H", f"Authorization: Bearer {KEY}"),
        *("--checks", ",".join(CHECKS), "--continue-on-failure"),
        *("--max-examples", str(examples), "--workers", str(workers)),
        *("--suppress-health-check", "all", "--request-timeout", "300", "--seed", "7"),
        *("--report", "json", "--report-json-path", str(report)),
    ]
    task = progress.add_task("schemathesis", total=LEAST_CASES)
    with log.open("w") as out, subprocess.Popen(command, stdout=out, stderr=out, cwd=work) as run:
        while run.poll() is None:
            time.sleep(1)
            progress.update(task, completed=sum(server.statuses().values()))
    progress.remove_task(task)
    told = json.loads(report.read_text(encoding="utf-8"))
    found = [
        f"{failure['title']} ({', '.join(failure['operations'])})" for failure in told["failures"]
    ]
    assert run.returncode == 0, f"{found}: with --keep FOLDER its log stays"
    made = told["test_cases"]["generated"]
    statuses = server.statuses()
    sent = sum(statuses.values())
    assert min(made, sent) >= LEAST_CASES, f"{made} cases, {sent} answers, not {LEAST_CASES}"
    assert "5xx" not in statuses, statuses
    return Outcome(
        client="schemathesis",
        version=version("schemathesis"),
        did=f"{told['operations']['tested']} operations of /openapi.json, {len(CHECKS)} checks",
        numbers={"cases": made, "answers": sent, "failures": len(found), **statuses},
    )
