"""Seconds to the first token of a prompt that the pool has given up: computed, from host memory,
from disk.

    python -m benchmarks.host_tier [--shape smollm-135m] [--dtype bfloat16] [--tokens 4096]

One `radixlm serve` with a random model of the shape, a pool with room for one prompt,
`--host-kv-tokens` for all, and a disk cache to which all is written. Prompts (--rounds, two at
least) of --tokens shared tokens are asked for one after the other, each time with 20 tokens of
their own: computed, then from host memory, then, with host memory flushed, from disk, what the
system holds of the files forgotten before each (`pages_held`: the share that it holds all the
same), and read from the system's memory. `*_cached_tokens` say how many tokens came from where.
Ratios are of medians. On a CPU host memory is no other memory than the pool's: what is measured is
the copy. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.disk_servers import Model, drop_pages, settle, warm
from benchmarks.peer_workloads import Ask, Draw
from benchmarks.rows import show_rows
from benchmarks.served import Served, median, serving
from radixlm.testing.checkpoints import SHAPES

OWN, OUT = 20, 4
# Of the pool, so that it is nearly full of one prompt: then it is copied.
ROOM = 1.2
_QUIET = 0.5


def copied(served: Served) -> None:
    """Wait until nothing has been copied to host memory for a moment."""
    seen, since = -1, time.monotonic()
    while time.monotonic() < since + _QUIET:
        written = served.state()["host_written"]
        if written != seen:
            seen, since = written, time.monotonic()
        time.sleep(0.05)


def measured(model: Model, options: argparse.Namespace, place: Path) -> dict[str, Any]:
    draw, folder = Draw(model.vocab, options.seed), place / "disk"
    prompts = [draw.tokens(options.tokens) for _ in range(options.rounds)]
    kv_tokens = int(ROOM * (options.tokens + OWN + OUT))
    host = (options.rounds + 1) * (options.tokens + 4 * (OWN + OUT)) + 4_096
    seconds: dict[str, list[float]] = {}
    came: Counter[str] = Counter()
    held = []
    flags = model.flags(kv_tokens, folder, "--host-kv-tokens", str(host))
    with serving(*flags, "--max-pinned-tokens", "0") as served:
        warm(model, served, options.seed)

        def ask(name: str, prompt: list[int]) -> None:
            before = served.state()
            [reply] = model.ask(served, [Ask(prompt + draw.tokens(OWN), OUT)])
            after = served.state()
            seconds.setdefault(name, []).append(reply.first)
            for field in ("host_cached_tokens", "disk_cached_tokens"):
                came[f"{name}_{field}"] += after[field] - before[field]
            copied(served)

        for prompt in prompts:
            ask("computed", prompt)
            settle(folder)
        for prompt in prompts:
            ask("host", prompt)
        for name in ("disk", "system_memory"):
            for prompt in prompts:
                model.flush(served)
                held += [drop_pages(folder)] if name == "disk" else []
                ask(name, prompt)
        state = served.state()
        alarms = served.alarms()
    found = {name: median(each) for name, each in seconds.items()}
    return {
        "tokens": options.tokens,
        "rounds": options.rounds,
        **{f"{name}_first_ms": round(1e3 * each, 2) for name, each in found.items()},
        "host_over_computed": round(found["host"] / found["computed"], 4),
        "disk_over_computed": round(found["disk"] / found["computed"], 4),
        "host_over_disk": round(found["host"] / found["disk"], 3),
        "host_over_system_memory": round(found["host"] / found["system_memory"], 3),
        **came,
        "all_ms": {name: [round(1e3 * one, 1) for one in each] for name, each in seconds.items()},
        "pages_held": held,
        "host_written": state["host_written"],
        "alarms": alarms,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--shape", choices=list(SHAPES), default="smollm-135m")
    parser.add_argument("--dtype", default="bfloat16", help="default: bfloat16; or float32")
    parser.add_argument("--tokens", type=int, default=4_096, help="shared; default: 4096")
    parser.add_argument("--rounds", type=int, default=3, help="prompts; default: 3")
    parser.add_argument("--place", type=Path, help="for models and caches; default: a temporary")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(dir=options.place) as scratch:
        place = Path(scratch)
        found = measured(Model.made(options.shape, place, options.dtype), options, place)
    show_rows("host tier", [{"what": key, "value": str(value)} for key, value in found.items()])
    report = {"benchmark": "host_tier", "shape": options.shape, "dtype": options.dtype, **found}
    print(json.dumps(report))


if __name__ == "__main__":
    main()
