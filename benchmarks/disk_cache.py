"""What a disk cache gives, and what it costs, with real servers.

    python -m benchmarks.disk_cache [--shape smollm-135m] [--dtype bfloat16] [--parts first,start]

`radixlm serve` with a random model of the shape and `--disk-write-policy all`. The parts:

    first    seconds to the first token of prompts of --tokens shared tokens and 20 of their own:
             computed; from memory; after a restart from disk, what the system holds of the files
             forgotten before each (posix_fadvise; `pages_held` is the share of their pages that it
             holds all the same; what a disk or a hypervisor holds is not in our hands), and read
             from the system's memory. The first answer of 32 tokens after a restart over the same
             before; beside it a process's first and second answer to 20 tokens without a disk
             cache. Bytes on disk over those of keys and values.
    start    seconds from starting the process to its first 200 with --stored tokens on disk, and
             with an empty folder, in turns; of the shape `tiny`, whose tokens take 256 bytes.
    load     W1 to W5 of `benchmarks.peers` with a disk cache and without, in turns, with other
             prompts in each round
    shared   two servers and one folder: the second's hit rate on the first one's prompts
    restart  hit rate over time around a restart, with the picture

Ratios are of medians, in `load` the median of the rounds' ratios. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from benchmarks import peers
from benchmarks.disk_restart import restart
from benchmarks.disk_servers import (
    Model,
    disk_over_kv,
    drop_pages,
    fill,
    hit_rate,
    plain_read,
    settle,
    warm,
    whole,
)
from benchmarks.peer_client import Reply
from benchmarks.peer_workloads import USUAL, Ask, Draw
from benchmarks.rows import show_rows
from benchmarks.served import median, serving
from radixlm.memory.store_care import contents
from radixlm.testing.checkpoints import SHAPES

OWN, OUT = 20, 32
LOAD_KV_TOKENS = 40_000
NEWS_SECONDS = 2.0


def ms(seconds: Sequence[float]) -> float:
    return round(1e3 * median(seconds), 2)


def ratio(some: Sequence[float], others: Sequence[float]) -> float:
    return round(median(some) / median(others), 3)


class FirstTokens:
    """Prefixes that are asked for with ends of their own, one at a time."""

    def __init__(self, model: Model, options: argparse.Namespace) -> None:
        self.model = model
        self.draw = Draw(model.vocab, options.seed)
        self.seed = options.seed
        self.prefixes = [self.draw.tokens(options.tokens) for _ in range(options.rounds)]
        self.kv_tokens = (options.rounds + 1) * (options.tokens + 10 * (OWN + OUT)) + 1_000

    def _ask(self, served: Any, prefix: list[int]) -> Reply:
        return self.model.ask(served, [Ask(prefix + self.draw.tokens(OWN), OUT)])[0]

    def before(self, folder: Path) -> tuple[list[Reply], list[Reply]]:
        """Each computed, then from memory."""
        computed, memory = [], []
        with serving(*self.model.flags(self.kv_tokens, folder)) as served:
            warm(self.model, served, self.seed)
            for prefix in self.prefixes:
                computed.append(self._ask(served, prefix))
                settle(folder)
                memory.append(self._ask(served, prefix))
        return computed, memory

    def after(self, folder: Path, *, first: int) -> tuple[list[Reply], list[Reply], float]:
        """From disk, `first` being the first that the process is asked for; then from the system's
        memory; and the most of the files that it held when it should not have.
        """
        disk, held = [], [drop_pages(folder)]
        order = self.prefixes[first:] + self.prefixes[:first]
        with serving(*self.model.flags(self.kv_tokens, folder)) as served:
            for number, prefix in enumerate(order):
                if number:
                    held.append(drop_pages(folder))
                disk.append(self._ask(served, prefix))
            self.model.flush(served)
            paged = [self._ask(served, prefix) for prefix in order]
        return disk, paged, max(held)

    def new_process(self) -> list[float]:
        """Seconds of a process's first and second answer to a short prompt, without a disk cache:
        what the first request pays that has nothing to do with one.
        """
        with serving(*self.model.flags(self.kv_tokens, None)) as served:
            return [whole(self._ask(served, [])) for _ in range(2)]


def first_tokens(model: Model, options: argparse.Namespace, place: Path) -> dict[str, Any]:
    folder, lab = place / "first", FirstTokens(model, options)
    computed, memory = lab.before(folder)
    taken = disk_over_kv(model, folder)
    runs, plain = [], []
    for number in range(options.restarts):
        runs.append(lab.after(folder, first=number % options.rounds))
        plain.append(plain_read(folder, options.tokens * model.token_bytes))
    firsts = [disk[0] for disk, _, _ in runs]
    disk = [reply for some, _, _ in runs for reply in some[1:]] or firsts
    paged = [reply for _, some, _ in runs for reply in some]
    seconds = {
        name: [reply.first for reply in some]
        for name, some in (("computed", computed), ("memory", memory), ("disk", disk),
                           ("system_memory", paged), ("first_after_restart", firsts))
    }  # fmt: skip
    return {
        "tokens": options.tokens,
        "restarts": options.restarts,
        "plain_read_ms": ms(plain),
        **{f"{name}_first_ms": ms(some) for name, some in seconds.items()},
        "disk_over_computed": ratio(seconds["disk"], seconds["computed"]),
        "system_memory_over_computed": ratio(seconds["system_memory"], seconds["computed"]),
        "disk_over_memory": ratio(seconds["disk"], seconds["memory"]),
        "answer_before_ms": ms([whole(reply) for reply in memory]),
        "answer_after_ms": ms([whole(reply) for reply in firsts]),
        "new_process_short_answers_ms": [round(1e3 * each, 1) for each in lab.new_process()],
        "answer_after_over_before": ratio(
            [whole(reply) for reply in firsts], [whole(reply) for reply in memory]
        ),
        "all_disk_ms": [round(1e3 * reply.first, 1) for some, _, _ in runs for reply in some],
        "all_system_memory_ms": [round(1e3 * reply.first, 1) for reply in paged],
        "fewest_cached": min(reply.cached or 0 for reply in [*firsts, *disk, *paged]),
        "pages_held": [held for _, _, held in runs],
        "disk_over_kv": taken,
    }


def starts(model: Model, options: argparse.Namespace, place: Path) -> dict[str, Any]:
    full, seconds = place / "full", {"full": [0.0][:0], "empty": [0.0][:0]}
    path = fill(model, full, options.stored)
    flags = ["--disk-cache-gb", "1000"]
    cached, held = [], []
    for number in range(options.rounds):
        for name in ("full", "empty"):
            folder = full if name == "full" else place / f"empty{number}"
            held += [drop_pages(full)] if name == "full" else []
            with serving(*model.flags(2 * len(path), folder, *flags)) as served:
                seconds[name].append(served.seconds)
                if name == "full":
                    cached.append(model.ask(served, [Ask([*path, 1], 1)])[0].cached)
    return {
        "shape": model.shape,
        "tokens_on_disk": options.stored,
        "full_s": round(median(seconds["full"]), 2),
        "empty_s": round(median(seconds["empty"]), 2),
        "full_over_empty": ratio(seconds["full"], seconds["empty"]),
        "cached_of_first_request": cached,
        "pages_held": held,
    }


def load(model: Model, options: argparse.Namespace, place: Path) -> dict[str, Any]:
    """The order of the two changes from round to round."""
    rows: dict[str, list[dict[str, dict[str, Any]]]] = {name: [] for name in options.only}
    one, two = (
        model.flags(LOAD_KV_TOKENS, folder) for folder in (None, place / "load")
    )  # without, with
    with (
        serving(*one, launcher=("setsid",)) as without,
        serving(*two, launcher=("setsid",)) as stored,
    ):
        for number in range(options.rounds):
            order = (without, stored) if number % 2 == 0 else (stored, without)
            asked = argparse.Namespace(
                urls=[served.url for served in order],
                groups=[served.pid for served in order],
                only=options.only,
                scale=options.scale,
                seed=options.seed + number,
                vocab_size=model.vocab,
                model=None,
                timeout=600.0,
            )
            report = asyncio.run(peers.measure_all(asked))
            for name in options.only:
                found = {row["server"]: row for row in report["results"] if row["workload"] == name}
                rows[name].append({"without": found[without.url], "with": found[stored.url]})
        alarms = stored.alarms()
    return {
        "rounds": options.rounds,
        "scale": options.scale,
        "alarms": alarms,
        "stored_tokens": sum(each.blocks * each.block_tokens for each in contents(place / "load")),
        "disk_over_kv": disk_over_kv(model, place / "load"),
        "workloads": [{"workload": name, **compared(some)} for name, some in rows.items()],
    }


def compared(rounds: Sequence[dict[str, dict[str, Any]]]) -> dict[str, Any]:
    """Medians over rounds, of each side and of the ratios with / without a disk cache."""
    for each in rounds:
        for row in each.values():
            if "error" in row:
                return {"error": row["error"]}

    def ratios(field: str) -> list[float]:
        return [each["with"][field] / max(each["without"][field], 1e-3) for each in rounds]

    return {
        "wall_s": round(median([each["with"]["wall_s"] for each in rounds]), 2),
        "wall_s_without": round(median([each["without"]["wall_s"] for each in rounds]), 2),
        "throughput": round(median([1 / each for each in ratios("wall_s")]), 3),
        "gap_p99": round(median(ratios("gap_ms_p99")), 3),
        "all_throughput": [round(1 / each, 3) for each in ratios("wall_s")],
        "all_gap_p99": [round(each, 3) for each in ratios("gap_ms_p99")],
        "cached": sum(each["with"]["cached_tokens"] for each in rounds),
        "cached_without": sum(each["without"]["cached_tokens"] for each in rounds),
    }


def shared(model: Model, options: argparse.Namespace, place: Path) -> dict[str, Any]:
    """The first server's own hit rate, when it is asked again, is the most there can be."""
    folder, draw = place / "shared", Draw(model.vocab, options.seed, 4)
    asks = [Ask(draw.tokens(options.tokens + OWN), 4) for _ in range(options.rounds)]
    flags = model.flags((options.rounds + 1) * (options.tokens + 100), folder)
    with serving(*flags) as first, serving(*flags) as second:
        model.ask(first, asks)
        settle(folder)
        again = model.ask(first, asks)
        asyncio.run(asyncio.sleep(NEWS_SECONDS))
        found = model.ask(second, asks)
    return {
        "prompts": len(asks),
        "prompt_tokens": len(asks[0].prompt),
        "hit_rate_of_first_again": round(hit_rate(again), 4),
        "hit_rate_of_second": round(hit_rate(found), 4),
        "second_over_first": round(hit_rate(found) / hit_rate(again), 4),
    }


PARTS: dict[str, Callable[[Model, argparse.Namespace, Path], dict[str, Any]]] = {
    "first": first_tokens,
    "start": starts,
    "load": load,
    "shared": shared,
    "restart": restart,
}


def _names(value: str) -> list[str]:
    return value.split(",")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--shape", choices=list(SHAPES), default="smollm-135m")
    parser.add_argument("--dtype", default="bfloat16", help="default: bfloat16; or float32")
    parser.add_argument("--parts", type=_names, default=list(PARTS), help="default: all")
    parser.add_argument("--tokens", type=int, default=4_096, help="shared; default: 4096")
    parser.add_argument("--rounds", type=int, default=3, help="or prompts; default: 3")
    parser.add_argument("--restarts", type=int, default=3, help="default: 3")
    parser.add_argument("--stored", type=int, default=1_000_000, help="default: 1000000")
    parser.add_argument("--only", type=_names, default=list(USUAL), help="such as W1,W5")
    parser.add_argument("--scale", type=float, default=1.0, help="of W1 to W5; default: 1")
    parser.add_argument("--requests", type=int, default=120, help="around a restart; default: 120")
    parser.add_argument("--picture", type=Path, default=Path("docs/img/disk_cache.png"))
    parser.add_argument("--place", type=Path, help="for models and caches; default: a temporary")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    if unknown := set(options.parts) - set(PARTS):
        parser.error(f"{', '.join(sorted(unknown))}: there are {', '.join(PARTS)}")
    report: dict[str, Any] = {"benchmark": "disk_cache", "shape": options.shape}
    report["dtype"] = options.dtype
    with tempfile.TemporaryDirectory(dir=options.place) as scratch:
        place, models = Path(scratch), {}
        for part in options.parts:
            shape = "tiny" if part == "start" else options.shape
            if shape not in models:
                models[shape] = Model.made(shape, place, options.dtype)
            report[part] = PARTS[part](models[shape], options, place)
            show(part, report[part])
    print(json.dumps(report))


def show(part: str, found: dict[str, Any]) -> None:
    rows = found.get("workloads")
    others = {key: value for key, value in found.items() if key != "workloads"}
    show_rows(part, [{"what": key, "value": str(value)} for key, value in others.items()])
    if rows:
        show_rows(part, rows)


if __name__ == "__main__":
    main()
