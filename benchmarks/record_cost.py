"""What `--record-trace` takes of a server's time.

    python -m benchmarks.record_cost [--requests 300]

For prompts of several lengths, answered with 100 tokens: microseconds of `note`, which is called on
the event loop, and of all of it, processor time, mostly of the thread that writes; plain and
hashed. Beside them the share of what a request takes when all but a hundredth of its prompt is
cached, at 10,000 new tokens of prompts and 500 of answers a second. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.rows import show_rows
from radixlm.bench.processor_name import processor
from radixlm.core.private_files import open_private
from radixlm.core.trace_lines import Recorded
from radixlm.server.pipeline.recorder import MOST_WAITING, Recorder

OUT = 100
PROMPT_RATE, ANSWER_RATE = 10_000, 500


def measure(folder: Path, size: int, requests: int, *, hashed: bool) -> dict[str, object]:
    draw = np.random.default_rng(0)
    prompt = draw.integers(0, 50_000, size, dtype=np.int32)
    request = Recorded(0.0, prompt, prompt[:OUT], max_tokens=OUT)
    file = open_private(folder / f"{size}-{hashed}")
    recorder = Recorder(file, 0, hashed=hashed, limit_bytes=10**10)
    notes, began = [], time.process_time()
    for _ in range(requests):
        started = time.perf_counter()
        recorder.note(request)
        notes.append(time.perf_counter() - started)
    recorder.close()
    seconds = (time.process_time() - began) / requests
    served = size / 100 / PROMPT_RATE + OUT / ANSWER_RATE
    return {
        "prompt": size,
        "hashed": str(hashed),
        "note us": round(1e6 * median(notes), 1),
        "in all us": round(1e6 * seconds, 1),
        "of a request %": round(100 * seconds / served, 2),
        "dropped": recorder.counts.dropped,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=300)
    requests = min(parser.parse_args().requests, MOST_WAITING)
    with tempfile.TemporaryDirectory() as scratch:
        rows = [
            measure(Path(scratch), size, requests, hashed=hashed)
            for size in (100, 1_000, 10_000)
            for hashed in (False, True)
        ]
    show_rows(f"Recording: {processor()}", rows)
    print(json.dumps({"benchmark": "record_cost", "processor": processor(), "rows": rows}))


if __name__ == "__main__":
    main()
