"""The command behind `scripts/sglang_frontend.py`."""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import radixlm as rl
from scripts.try_clients.server import KEY, Served, served

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = sorted((ROOT / "examples").glob("*.py"))
FRONTEND = Path(__file__).with_name("frontend.py")
# SGLang's `select` scores the last tokens of the prompt too: see docs/language.md.
_MISTAKEN = "choices"
_SHOWN = 56
_SECONDS = 600

Results = Mapping[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/sglang_frontend.py", description=__doc__)
    parser.add_argument(
        "--python",
        type=Path,
        default=Path(".venv-sglang/bin/python"),
        help="of the environment with SGLang's frontend",
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, served(Path(folder), "server", ()) as server:
        theirs = with_sglang(options.python, server, PROGRAMS)
        mistaken = [program for program in PROGRAMS if program.stem == _MISTAKEN]
        mended = with_sglang(options.python, server, mistaken, "--mended")
        by_http = with_ours(rl.RuntimeEndpoint(server.url, api_key=KEY))
        server.check_books()
    with rl.Engine() as engine:
        in_process = with_ours(engine)
    rows = [row(name, theirs[name], by_http[name], in_process[name]) for name in sorted(in_process)]
    rows.append(
        row(f"{_MISTAKEN}, mended", mended[_MISTAKEN], by_http[_MISTAKEN], in_process[_MISTAKEN])
    )
    print_table(rows)
    failed = isinstance(theirs[_MISTAKEN], str)
    good = not failed and all(each["equal"] for each in rows if each["program"] != _MISTAKEN)
    print(json.dumps({"passed": good, "programs": rows}))
    return 0 if good else 1


def with_sglang(python: Path, server: Served, programs: Sequence[Path], *options: str) -> Results:
    """Each program's result, or its error."""
    command = [str(python), str(FRONTEND), server.url, KEY, *options, *map(str, programs)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=_SECONDS)
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return {line["program"]: line.get("result", line.get("error")) for line in lines}


def with_ours(backend: Any) -> Results:
    """Each program's result."""
    rl.set_default_backend(backend)
    results = {}
    for program in PROGRAMS:
        with contextlib.redirect_stdout(io.StringIO()):
            result = runpy.run_path(str(program))["main"]()
        results[program.stem] = json.loads(json.dumps(result))
    return results


def row(name: str, theirs: Any, by_http: Any, in_process: Any) -> dict[str, Any]:
    return {
        "program": name,
        "SGLang's frontend": theirs,
        "our RuntimeEndpoint": by_http,
        "our Engine": in_process,
        "equal": theirs == by_http == in_process,
    }


def print_table(rows: Sequence[dict[str, Any]]) -> None:
    """In Markdown; our results are shown where they are not SGLang's."""
    print("| " + " | ".join(rows[0]) + " |")
    print("|" + "---|" * len(rows[0]))
    for each in rows:
        name, theirs, *ours, equal = each.values()
        told = [f"`{shortened(theirs)}`"]
        told += ["the same" if own == theirs else f"`{shortened(own)}`" for own in ours]
        print("| " + " | ".join([name, *told, "yes" if equal else "**no**"]) + " |")


def shortened(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


if __name__ == "__main__":
    sys.exit(main())
