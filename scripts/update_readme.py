"""Put measured numbers into the README and three guides: tables, a picture, scores.

    python scripts/update_readme.py

Reads benchmarks/results/shared-prefix-*.jsonl (written by `radixlm bench shared-prefix --json`),
paper.jsonl (by `radixlm bench paper --json`; docs/img/paper.png is made by its --picture),
paper-pool30.jsonl (the same with `--pool 0.3 --modes lpm`), paper-frontend.jsonl (by `radixlm bench
paper --frontend --json`; its --picture makes docs/img/paper-frontend.png) and the
demo model's card (by scripts/train_demo_model.py). Nothing in those parts of README.md,
docs/benchmarks.md (the paper's workloads), docs/language.md and docs/quantization.md (by `radixlm
bench quantized --json` into quantized-*.jsonl, benchmarks.quality into quality.jsonl) is written by
hand.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib import pyplot as plt

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "img" / "shared-prefix.png"
DEMO = ROOT / "src" / "radixlm" / "demo_model"

Run = dict[str, Any]


def main() -> None:
    runs = [read(path.stem) for path in sorted(RESULTS.glob("shared-prefix-*.jsonl"))]
    paper = read("paper")
    paper_rows = paper_table(paper, read("paper-pool30"))
    replace_part(ROOT / "README.md", "numbers", numbers_table(runs))
    replace_part(ROOT / "README.md", "paper", paper_sentence(paper))
    replace_part(ROOT / "README.md", "demo", demo_table())
    replace_part(ROOT / "docs" / "benchmarks.md", "paper", paper_rows)
    replace_part(ROOT / "docs" / "language.md", "frontend", frontend_table(read("paper-frontend")))
    formats = [run for path in sorted(RESULTS.glob("quantized-*.jsonl")) for run in read(path.stem)]
    replace_part(ROOT / "docs" / "quantization.md", "speed", speed_table(formats))
    replace_part(ROOT / "docs" / "quantization.md", "memory", memory_table(formats))
    replace_part(ROOT / "docs" / "quantization.md", "quality", quality_table(read("quality")[0]))
    draw(runs)


def read(name: str) -> list[Run]:
    """The runs of one file of results."""
    return [json.loads(line) for line in (RESULTS / f"{name}.jsonl").read_text().splitlines()]


def replace_part(path: Path, name: str, content: str) -> None:
    """Put `content` between the markers of that name in the file."""
    pattern = rf"(<!-- {name}:[^>]*-->\n).*?(<!-- /{name} -->)"
    replaced, count = re.subn(
        pattern,
        lambda match: match[1] + content + match[2],
        path.read_text(),
        flags=re.DOTALL,
    )
    if count != 1:
        raise SystemExit(f"{path} has {count} parts called {name!r}, not one")
    path.write_text(replaced)


def numbers_table(runs: list[list[Run]]) -> str:
    """One row for each dtype: both wall times and their ratio."""
    lines = [
        "| model, dtype | requests | cache off | cache on | ratio | computed off / on | hit rate |",
        "|---|---|---|---|---|---|---|",
    ]
    for pair in runs:
        on, off = by_mode(pair)
        prompt = on["prompt_tokens"] // on["requests"]
        lines.append(
            f"| random 135M, {on['dtype']} | {on['requests']} x {prompt:,} tokens "
            f"| {off['wall_s']:.1f} s | {on['wall_s']:.1f} s "
            f"| **{off['wall_s'] / on['wall_s']:.1f}x** "
            f"| {off['computed_tokens']:,} / {on['computed_tokens']:,} "
            f"| {100 * on['hit_rate']:.2f} %, best possible {100 * on['best_hit_rate']:.2f} % |"
        )
    return "\n".join(lines) + "\n"


def paper_table(roomy: list[Run], tight: list[Run]) -> str:
    """One row for each workload of the paper: what of the best hit rate is reached, and time."""
    lines = [
        "| workload | requests | best, % | `lpm` | pool 30 % | pages of 16 | off / on | TTFT, ms |",
        "|---|---|---|---|---|---|---|---|",
    ]
    small = {run["workload"]: run for run in tight if run["mode"] == "lpm"}
    for name in dict.fromkeys(run["workload"] for run in roomy):
        modes = {run["mode"]: run for run in roomy if run["workload"] == name}
        off, on = modes["off"], modes["lpm"]
        shares = [_share(run) for run in (on, small.get(name), modes["page16"])]
        lines.append(
            f"| `{name}` | {on['requests']} x {on['prompt_tokens'] // on['requests']:,} "
            f"| {100 * on['best_hit_rate']:.1f} | {' | '.join(shares)} "
            f"| **{off['wall_s'] / on['wall_s']:.1f}x** "
            f"| {off['ttft_ms_p50']:,.0f} / {on['ttft_ms_p50']:,.0f} |"
        )
    return "\n".join(lines) + "\n"


def paper_sentence(runs: list[Run]) -> str:
    """The range of the paper's workloads, of which those that share nothing are left out."""
    sharing = [run for run in runs if run["best_hit_rate"] >= 0.001]
    walls = {run["workload"]: run["wall_s"] for run in sharing if run["mode"] == "off"}
    cached = [run for run in sharing if run["mode"] == "lpm"]
    reached = [100 * run["hit_rate"] / run["best_hit_rate"] for run in cached]
    faster = [walls[run["workload"]] / run["wall_s"] for run in cached]
    return (
        f"On {len(cached)} workloads like those of SGLang's paper the cache reaches "
        f"{min(reached):.0f} to {max(reached):.0f} % of the best possible hit rate\n"
        f"and is {min(faster):.1f} to {max(faster):.1f} times as fast as without it "
        "([table](docs/benchmarks.md)).\n"
    )


def frontend_table(runs: list[Run]) -> str:
    """One row for each workload: what of the best hit rate programs reach, and what they cost."""
    lines = [
        "| workload | requests | best, % | reached, % | wall s, without it | overhead, % |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| `{run['workload']}` | {run['requests'] // run['rounds']:,} "
        f"| {100 * run['best_hit_rate']:.1f} | {_share(run)} "
        f"| {run['wall_s']:.2f}, {run['direct_wall_s']:.2f} "
        f"| {100 * run['overhead']:+.1f} |"
        for run in runs
    ]
    return "\n".join(lines) + "\n"


def speed_table(runs: list[Run]) -> str:
    """A table for each processor: rows for each format and for what llama.cpp has with as many
    bits, of all runs.
    """
    parts = []
    for machine in dict.fromkeys(map(_machine, runs)):
        its = [run for run in runs if _machine(run) == machine]
        lines = [
            f"{machine}:",
            "",
            "| model | weights | MB each | one stream, /s | of the bound | × | prefill, /s | × |",
            "|---|---|---|---|---|---|---|---|",
        ]
        found: dict[tuple[str, str, str], list[Run]] = {}
        for run in its:
            for row in run["rows"]:
                found.setdefault((run["model"], row["format"], row["name"]), []).append(row)
        lines += [_speeds(*names, rows) for names, rows in found.items()]
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def _machine(run: Run) -> str:
    """What a run was made on; older ones do not name instructions."""
    names = (run["processor"], run.get("instructions"), f"{run['threads']} threads")
    return ", ".join(filter(None, names))


def _speeds(model: str, of_format: str, name: str, rows: list[Run]) -> str:
    """Speeds of all runs, and how often the other's time that is."""
    own = name == of_format
    ratios = ("decode_theirs_over_ours", "prefill_theirs_over_ours")
    decode, prefill = (
        "–" if own else ", ".join(f"**{row[ratio]:.2f}**" for row in rows) for ratio in ratios
    )
    speeds, prefills = (
        ", ".join(f"{row[speed]:,.0f}" for row in rows)
        for speed in ("decode_per_s", "prefill_per_s")
    )
    bounds = ", ".join(f"{100 * row['share_of_bound']:.0f}" for row in rows)
    shown = f"`{name}`" if own else f"llama.cpp {name}"
    return (
        f"| {model} | {shown} | {rows[0]['mb_read']:,.0f} | {speeds} | {bounds} % | {decode} "
        f"| {prefills} | {prefill} |"
    )


def memory_table(runs: list[Run]) -> str:
    """What weights take once they are loaded, and what loading takes at most, of each last run."""
    lines = [
        "| model | weights | MB | most while loading, MB | of what stays | of the weights |",
        "|---|---|---|---|---|---|",
    ]
    last = {(run["model"], name): row for run in runs for name, row in run["memory"].items()}
    lines += [
        f"| {model} | `{name}` | {row['held_mb']:,.0f} | {row['peak_mb']:,.0f} "
        f"| {row['peak_over_stays']:.2f} | {row['without_tiny']:.2f} |"
        for (model, name), row in last.items()
        if "peak_over_stays" in row
    ]
    return "\n".join(lines) + "\n"


def quality_table(report: Run) -> str:
    """Right answers of the demo model, in each format."""
    lines = ["| weights | keys and values | right answers | of |", "|---|---|---|---|"]
    for row in report["results"]:
        weights, _, kv = row["format"].partition("/")
        lines.append(
            f"| `{row['dtype'] if weights == 'none' else weights}` | `{kv or row['dtype']}` "
            f"| {100 * row['share']:.2f} % | {row['questions']:,} |"
        )
    return "\n".join(lines) + "\n"


def _share(run: Run | None) -> str:
    if run is None or run["best_hit_rate"] < 0.001:
        return "–"
    return f"{100 * run['hit_rate'] / run['best_hit_rate']:.1f}"


def demo_table() -> str:
    """How often the demo model is right, on what was kept out of its training."""
    facts = json.loads((DEMO / "training.json").read_text())
    context = json.loads((DEMO / "config.json").read_text())["max_position_embeddings"]
    rows = re.findall(
        r"^\| (.+?) \| ([\d.]+ %) \| (\d+) \|$", (DEMO / "README.md").read_text(), re.M
    )
    asked = [
        (name, float(right[:-2]), int(count))
        for name, right, count in rows
        if "readable" not in name
    ]
    total = sum(count for *_, count in asked)
    right = sum(share * count for _, share, count in asked) / total
    worst = ", ".join(f"{name} {share:.0f} %" for name, share, _ in asked if share < 90) or "none"
    size = facts["parameters"] / 1e6
    return (
        f"A Llama of {size:.1f} M parameters with {context:,} tokens of context. It knows capitals "
        "and other small facts,\nadds, counts, makes lists, tells tiny stories, and remembers what "
        f"you say. Of {total:,} questions whose\nwording, sums or names were kept out of its "
        f"training it answers **{right:.1f} %** exactly right.\nKinds below 90 %: {worst}.\n"
    )


def by_mode(pair: list[Run]) -> tuple[Run, Run]:
    modes = {run["mode"]: run for run in pair}
    return modes["on"], modes["off"]


def draw(runs: list[list[Run]]) -> None:
    """Two bars for each dtype, the ratio above them."""
    mpl.use("Agg")
    figure, axes = plt.subplots(figsize=(7, 2.6), layout="constrained")
    for index, pair in enumerate(runs):
        on, off = by_mode(pair)
        for place, run, colour in ((0.2, off, "#b8bfc6"), (-0.2, on, "#2f7d4f")):
            axes.barh(index + place, run["wall_s"], height=0.36, color=colour)
            label = f" {run['wall_s']:.1f} s, cache {run['mode']}"
            if run is on:
                label += f": {off['wall_s'] / on['wall_s']:.1f}x faster"
            axes.text(run["wall_s"], index + place, label, va="center", fontsize=9)
    axes.set_yticks(range(len(runs)), [pair[0]["dtype"] for pair in runs])
    axes.set_xlim(0, 1.3 * max(run["wall_s"] for pair in runs for run in pair))
    first = runs[0][0]
    axes.set_title(
        f"{first['requests']} requests over one shared prefix, 135M shape, 2 CPU cores (wall time)",
        fontsize=10,
        loc="left",
    )
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(PICTURE, dpi=150)


if __name__ == "__main__":
    main()
