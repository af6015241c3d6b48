"""Whether "ready" is warm: the first request after it, beside the tenth.

    python -m benchmarks.first_request [--model FOLDER] [--starts 3]

`radixlm serve` is started anew for each kind of request: completions, a chat, a stream, a prompt of
two hundred words, an answer in JSON after a schema. As soon as it prints its address, the same kind
of request is sent ten times, each with words of its own and on a connection of its own, one after
another: the first may take as long as the last ones (the median of the sixth to the tenth). Time by
the clock shows other work on the machine, too; what the server's threads were on a processor for
does so less. The best of several starts counts. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import signal
import socket
import statistics
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.rows import show_rows
from benchmarks.served import PATIENCE, RADIXLM
from radixlm.testing.ports import free_port

REQUESTS = 10
LATER = 5
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}
KINDS = ("completion", "chat", "stream", "long prompt", "schema")


def request(kind: str, number: int) -> tuple[str, dict[str, Any]]:
    """Path and body. No two of a kind share more than their first word."""
    words = f"Tell {number} {chr(ord('a') + number) * 3} of it"
    body: dict[str, Any] = {"max_tokens": 16, "temperature": 0}
    chat = {"messages": [{"role": "user", "content": words}]}
    match kind:
        case "completion":
            return "/v1/completions", {**body, "prompt": words}
        case "long prompt":
            return "/v1/completions", {**body, "prompt": f"{number} {words} " * 25}
        case "schema":
            form = {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}
            return "/v1/chat/completions", {**body, **chat, "response_format": form}
        case _:
            return "/v1/chat/completions", {**body, **chat, "stream": kind == "stream"}


def seconds_of(port: int, path: str, body: dict[str, Any]) -> float:
    """From connecting to the end of the answer; bytes on a socket, so that no client warms up."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: here\r\nConnection: close\r\nContent-Length: {len(data)}"
    began = time.perf_counter()
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as connection:
        connection.sendall(f"{head}\r\n\r\n".encode() + data)
        answer = b""
        while part := connection.recv(65_536):
            answer += part
    taken = time.perf_counter() - began
    if not answer.startswith(b"HTTP/1.1 200"):
        raise SystemExit(answer.decode(errors="replace"))
    return taken


def cpu_seconds(pid: int) -> float:
    """Of all threads of a process so far, as Linux counts them in ns."""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text(encoding="ascii").split()[0]) for task in tasks) / 1e9


def one_start(kind: str, model: Sequence[str]) -> tuple[float, list[float], list[float]]:
    """Seconds from the command to "ready"; of each request, by the clock and of processors."""
    port = free_port()
    command = [RADIXLM, "serve", *model, "--port", str(port), "--kv-tokens", "20000"]
    began = time.perf_counter()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        try:
            line = ""
            while process.stdout and f":{port}" not in line:
                line = process.stdout.readline()
                if not line:
                    raise SystemExit(f"{' '.join(command)} ended")
            ready = time.perf_counter() - began
            walls, cpus = [], []
            for number in range(REQUESTS):
                before = cpu_seconds(process.pid)
                walls.append(seconds_of(port, *request(kind, number)))
                cpus.append(cpu_seconds(process.pid) - before)
            return ready, walls, cpus
        finally:
            process.send_signal(signal.SIGINT)


def measure(kind: str, model: Sequence[str], starts: int) -> dict[str, Any]:
    ready, walls, cpus = zip(*(one_start(kind, model) for _ in range(starts)), strict=True)
    row: dict[str, Any] = {"kind": kind, "ready_s": round(min(ready), 2)}
    for name, runs in (("", walls), ("cpu_", cpus)):
        first = min(run[0] for run in runs)
        later = min(statistics.median(run[-LATER:]) for run in runs)
        row |= {
            f"{name}first_ms": round(1e3 * first, 1),
            f"{name}later_ms": round(1e3 * later, 1),
            f"{name}ratio": round(first / later, 2),
        }
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--model", help="default: the embedded demo model")
    parser.add_argument("--kind", action="append", choices=KINDS, help="default: each")
    parser.add_argument("--starts", type=int, default=3, help="of each kind; default: 3")
    options = parser.parse_args()
    model = [options.model] if options.model else []
    rows = [measure(kind, model, options.starts) for kind in options.kind or KINDS]
    show_rows("first request after ready / later ones", rows)
    print(json.dumps({"benchmark": "first_request", "model": options.model, "kinds": rows}))


if __name__ == "__main__":
    main()
