"""Outcomes of simulations as a table and a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from radixlm.bench.tables import GRAY, GREEN, SMALL, percent, print_table, say, two_panels
from radixlm.core.errors import counted
from radixlm.sim.calls import Problems
from radixlm.sim.outcomes import Gain, Outcome

# What a run is with, by its field, and how a picture says it; the pool is always shown.
_SETTINGS: Mapping[str, tuple[str, str]] = {
    "replicas": ("replicas", "{} replicas"),
    "kv_tokens": ("pool", "{:,} tokens"),
    "disk_tokens": ("disk", "disk of {:,}"),
    "page_size": ("page", "pages of {}"),
    "eviction_policy": ("eviction", "{}"),
    "schedule_policy": ("order", "{}"),
}
_FIGURES = (
    *(("ttft_ms_p50", "TTFT ms"), ("ttft_ms_p99", "p99"), ("tpot_ms_p50", "TPOT ms")),
    *(("tpot_ms_p99", "p99"), ("queued_ms_p50", "wait ms"), ("queued_ms_p99", "p99")),
    *(("output_tokens_per_s", "out tok/s"), ("evicted_tokens", "evicted")),
    *(("restored_tokens", "restored"), ("stored_computed_tokens", "not read")),
    *(("unwritten_tokens", "not written"), ("dropped_tokens", "dropped")),
    *(("no_state_tokens", "no state"), ("retractions", "retracted")),
)
_OF_FLEETS = ("imbalance", "most/mean")


def show(outcomes: Sequence[Outcome]) -> None:
    """Print a table with one row per setting, a line between pools; times: median and p99. Settings
    that are the same in all stand above it, and what never happened is left out.
    """
    first, varied, bounds = outcomes[0], _varied(outcomes), _bounds(outcomes)
    figures = [(name, text) for name, text in _FIGURES if any(getattr(o, name) for o in outcomes)]
    if any(o.replicas > 1 for o in outcomes):
        figures.append(_OF_FLEETS)
    if all(o.output_tokens == o.calls for o in outcomes):  # no answers, only first tokens
        figures = [figure for figure in figures if figure[0] != "output_tokens_per_s"]
    columns = [
        *(_SETTINGS[name][0] for name in varied),
        *("hit %", *(text for _, text in figures), *bounds),
    ]
    groups = [
        [
            [
                *(_number(getattr(o, name)) for name in varied),
                percent(o.hit_rate),
                *(_number(getattr(o, name)) for name, _ in figures),
                *(percent(o.bounds.get(name)) for name in bounds),
            ]
            for o in group
        ]
        for _, group in groupby(outcomes, lambda o: o.kv_tokens)
    ]
    say(_title(first))
    if same := _same(first, varied):
        say(same)
    print_table("", columns, groups, left=0)


def _title(first: Outcome) -> str:
    tokens = f"{first.prompt_tokens:,} prompt tokens"
    return f"{first.trace}: {counted(first.calls, 'call')}, {tokens}, costs of {first.costs}"


def _same(first: Outcome, varied: Sequence[str]) -> str:
    """The settings that all rows have."""
    return ", ".join(
        f"{title} {getattr(first, name)}"
        for name, (title, _) in _SETTINGS.items()
        if name not in varied and getattr(first, name)
    )


def _varied(outcomes: Sequence[Outcome]) -> list[str]:
    values = {name: {getattr(each, name) for each in outcomes} for name in _SETTINGS}
    return [name for name in _SETTINGS if len(values[name]) > 1 or name == "kv_tokens"]


def _bounds(outcomes: Iterable[Outcome]) -> list[str]:
    """Names of all bounds that are beside any of them."""
    return list(dict.fromkeys(name for each in outcomes for name in each.bounds))


def _number(value: float | str | None) -> str:
    """Three digits at least of what is small."""
    if value is None or isinstance(value, str):
        return value or "–"
    return f"{value:,.0f}" if isinstance(value, int) or value >= 100 else f"{value:.3g}"


def show_problems(problems: Iterable[Problems]) -> None:
    """Print what was left out, and why: the same line of a trace once."""
    shown: dict[str, None] = {}
    counts: dict[str, int] = {}
    for each in problems:
        shown |= dict.fromkeys(each.shown)
        for kind, count in each.counts.items():
            counts[kind] = max(counts.get(kind, 0), count)
    if not counts:
        return
    kinds = ", ".join(f"{kind} ({count:,})" for kind, count in counts.items())
    say(f"left out: {kinds}")
    for line in shown:
        say(f"  {line}")


def show_gains(base: Outcome, found: Sequence[Gain]) -> None:
    """Print what pays, and what does not."""
    ttft = "" if not base.ttft_ms_p50 else f", first token after {base.ttft_ms_p50:,.0f} ms"
    say(_title(base))
    say(f"as it is: hit rate {100 * base.hit_rate:.1f} %{ttft}")
    for pays, title in ((True, "what pays"), (False, "what does not")):
        chosen = [gain for gain in found if gain.pays == pays]
        if chosen:
            say(f"{title}:")
        for gain in chosen:
            say(f"  {gain.sentence()}")


def draw(path: Path, outcomes: Sequence[Outcome]) -> None:
    """Write the picture. Left: hit rates, and bounds as ticks; right: time to the first token, the
    median as a bar and the 99th percentile as a dot.
    """
    upward = outcomes[::-1]
    varied = _varied(outcomes)
    with two_panels(path, _title(outcomes[0]), [_label(each, varied) for each in upward]) as (
        left,
        right,
    ):
        left.set_title("hit rate, %", **SMALL)
        rates = [100 * each.hit_rate for each in upward]
        left.barh(range(len(upward)), rates, height=0.62, color=GREEN)
        for at, rate in enumerate(rates):  # at the edge, where no bound is
            across = left.get_yaxis_transform()
            left.text(1, at, f"{rate:.1f}", transform=across, ha="right", va="center", fontsize=9)
        for name, mark in zip(_bounds(outcomes), "|xd^v", strict=False):
            known = [(100 * b, at) for at, o in enumerate(upward) if (b := o.bounds.get(name))]
            left.plot(*zip(*known, strict=True), mark, color=GRAY, label=name)
        if _bounds(outcomes):
            place = {"loc": "lower right", "bbox_to_anchor": (1.02, 0.985), "ncols": 3}
            left.legend(frameon=False, fontsize=8, columnspacing=1, handletextpad=0.2, **place)
        left.margins(x=0.15)
        right.set_title("time to first token, ms: median, and 99th percentile (dots)", **SMALL)
        medians = [each.ttft_ms_p50 or 0.0 for each in upward]
        right.barh(range(len(upward)), medians, height=0.62, color=GREEN)
        right.plot(
            [each.ttft_ms_p99 or 0.0 for each in upward], range(len(upward)), "o", color=GRAY
        )


def _label(each: Outcome, varied: Sequence[str]) -> str:
    return ", ".join(_SETTINGS[name][1].format(getattr(each, name)) for name in varied)
