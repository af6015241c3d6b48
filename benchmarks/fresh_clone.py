"""From a fresh clone to the first answer, beside what pip takes for torch alone.

    python -m benchmarks.fresh_clone [--rounds 2]

Each round installs the pinned torch with pip into a new environment, and then clones what is
committed here and runs `make serve` until a chat is answered. Both begin with an empty home, so
nothing is downloaded, compiled or kept already. Wanted: at most 1.3 times torch's seconds and
megabytes. CPU seconds say the same where other work shares the machine. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from benchmarks.rows import show_rows
from benchmarks.served import PATIENCE
from radixlm.testing.ports import free_port

ROOT = Path(__file__).parent.parent
Row = dict[str, Any]


def torch_alone(scratch: Path, home: dict[str, str]) -> Path:
    """The environment with the pinned torch, installed as anybody would."""
    pins = (ROOT / "constraints.txt").read_text()
    (pin,) = re.findall(r"^torch==\S+", pins, re.MULTILINE)
    subprocess.run([sys.executable, "-m", "venv", scratch / "venv"], check=True)
    pip = [scratch / "venv" / "bin" / "python", "-m", "pip", "install", "--quiet", pin]
    subprocess.run(pip, check=True, env=home)
    return scratch / "venv"


def make_serve(scratch: Path, home: dict[str, str]) -> Path:
    """The environment of a clone whose server has answered."""
    clone, port = scratch / "radixlm", free_port()
    git = [str(shutil.which("git")), "clone", "--quiet", str(ROOT), str(clone)]
    subprocess.run(git, check=True)
    command = [
        str(shutil.which("make")),
        "serve",
        f"ARGS=--port {port}",
        f"PYTHON={sys.executable}",
    ]
    with subprocess.Popen(command, cwd=clone, env=home, start_new_session=True) as make:
        try:
            while not answers(port):
                if make.poll() is not None:
                    raise SystemExit(f"make serve ended with {make.returncode}")
                time.sleep(0.1)
        finally:
            os.killpg(make.pid, signal.SIGINT)
    return clone / ".venv"


def answers(port: int) -> bool:
    """Whether a server there has answered a chat now."""
    body = {"messages": [{"role": "user", "content": "What is the capital of France?"}]}
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    try:
        return httpx.post(url, json=body, timeout=PATIENCE).is_success
    except httpx.TransportError:
        return False


def measured(name: str, step: Callable[[Path, dict[str, str]], Path]) -> Row:
    """Seconds, CPU seconds of all processes, and megabytes of the environment that it makes."""
    with tempfile.TemporaryDirectory(prefix="radixlm-clone-") as folder:
        scratch = Path(folder)
        (scratch / "home").mkdir()
        started, cpu = time.monotonic(), cpu_seconds()
        environment = step(scratch, {**os.environ, "HOME": str(scratch / "home")})
        return {
            "what": name,
            "seconds": round(time.monotonic() - started, 1),
            "cpu_s": round(cpu_seconds() - cpu, 1),
            "mb": disk_megabytes(environment),
        }


def cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def disk_megabytes(folder: Path) -> int:
    sizes = (path.lstat().st_blocks * 512 for path in folder.rglob("*"))
    return round(sum(sizes) / 2**20)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=2)
    rounds = parser.parse_args().rounds
    rows: list[Row] = []
    for _ in range(rounds):
        rows += [measured("torch alone", torch_alone), measured("make serve", make_serve)]
        print(rows[-2:], flush=True)
    show_rows("fresh clone to first answer", rows)
    ratios = {
        f"{unit}_ratio": round(
            min(row[unit] for row in rows[1::2]) / min(row[unit] for row in rows[::2]), 2
        )
        for unit in ("seconds", "cpu_s", "mb")
    }
    print(json.dumps({"rounds": rounds, **ratios}))


if __name__ == "__main__":
    main()
