"""`radixlm batch` and a server that are killed in the middle of a batch: each line once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from radixlm.testing.ports import free_port
from tests.server_support import until

RADIXLM = str(Path(sys.executable).with_name("radixlm"))
LINES, KILLS = 300, 3


def inputs(path: Path) -> Path:
    with path.open("w") as file:
        for n in range(LINES):
            body = {"prompt": f"{'few shots ' * 20}{n % 10} and {n}", "max_tokens": 24, "seed": n}
            line = {"custom_id": f"r{n}", "method": "POST", "url": "/v1/completions", "body": body}
            file.write(json.dumps(line) + "\n")
    return path


def size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def each_once(content: str) -> None:
    found = [json.loads(line) for line in content.splitlines()]
    assert sorted(int(each["custom_id"][1:]) for each in found) == list(range(LINES))
    assert {each["response"]["status_code"] for each in found} == {200}


@pytest.mark.slow
def test_the_command(tmp_path):
    source, output = inputs(tmp_path / "in.jsonl"), tmp_path / "out.jsonl"
    command = [RADIXLM, "batch", str(source), str(output), "--max-running-requests", "8"]
    for _ in range(KILLS):
        before = size(output)
        with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process:  # noqa: S603
            assert until(lambda before=before, it=process: size(output) > before or it.poll() == 0)
            time.sleep(0.05)
            process.kill()
        assert process.returncode in (-9, 0)  # 0: it was faster
    assert subprocess.run(command, stderr=subprocess.DEVNULL).returncode == 0  # noqa: S603
    each_once(output.read_text())


def served(folder: Path, port: int) -> subprocess.Popen[bytes]:
    command = [RADIXLM, "serve", "--port", str(port), "--file-storage-path", str(folder)]
    quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([*command, "--max-running-requests", "8"], **quiet)  # noqa: S603

    def answers() -> bool:
        try:
            return httpx.get(f"http://127.0.0.1:{port}/health").is_success
        except httpx.TransportError:
            return False

    assert until(answers)
    return process


@pytest.mark.slow
def test_a_server(tmp_path):
    port, folder = free_port(), tmp_path / "files"
    with httpx.Client(base_url=f"http://127.0.0.1:{port}/v1", timeout=30) as client:

        def batch() -> dict[str, Any]:
            return client.get(f"/batches/{made['id']}").json()

        with served(folder, port) as process:
            with inputs(tmp_path / "in.jsonl").open("rb") as file:
                sent = client.post("/files", files={"file": file}, data={"purpose": "batch"})
            body = {"input_file_id": sent.json()["id"], "endpoint": "/v1/completions"}
            made = client.post("/batches", json={**body, "completion_window": "24h"}).json()
            for _ in range(KILLS):
                before = min(batch()["request_counts"]["completed"], LINES - 1)
                assert until(lambda before=before: batch()["request_counts"]["completed"] > before)
                process.kill()
                process.wait()
                process = served(folder, port)
            assert until(lambda: batch()["status"] == "completed")
            assert batch()["request_counts"] == {"total": LINES, "completed": LINES, "failed": 0}
            each_once(client.get(f"/files/{batch()['output_file_id']}/content").text)
            process.kill()
