"""`radixlm sim`: a trace with other settings, without the machine; and what the machine takes."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, replace
from itertools import product
from pathlib import Path
from typing import Any

import click
from tqdm import tqdm

from radixlm.bench.tables import append_json, check_picture
from radixlm.cli.options import option, options_of_engine
from radixlm.cli.start import later
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError, counted
from radixlm.sim.calls import Problems
from radixlm.sim.costs import FLAGS, Costs, keep_costs, kept_costs, made_up, read_costs
from radixlm.sim.outcomes import SimRun, Variation, gains, measure_all, variations
from radixlm.sim.sim_disk import DiskSize
from radixlm.sim.sim_reports import draw, show, show_gains, show_problems
from radixlm.sim.sources import GENERATED, TraceSource, write_trace
from radixlm.sim.trace_files import BLOCK_TOKENS

measured = later("radixlm.sim.calibration:measured")
played = later("radixlm.sim.live:played")

_VARIED = ("kv_tokens", "page_size", "eviction_policy", "schedule_policy")
_SAME = (
    *("chunked_prefill_size", "max_running_requests", "max_queued_requests", "context_length"),
    *("schedule_conservativeness", "max_pinned_tokens", "disable_radix_cache"),
    *("disk_write_policy", "disk_block_tokens"),
    *("max_mamba_cache_size", "state_checkpoint_interval"),
)
# Where neither a flag nor a model says how large the pool is.
_POOL = 100_000
# The folder of a disk that is only simulated.
_DISK = "simulated"
_PATH = click.Path(path_type=Path)
_COUNT, _RATE = click.IntRange(1), click.FloatRange(0, min_open=True)
_DISK_RATE = click.FloatRange(1)
_PER_BLOCK = [str(2**bits) for bits in range(BLOCK_TOKENS.bit_length())]


@click.command("sim")
@click.argument("trace", required=False)
@options_of_engine(*_VARIED, repeatable=True)
@options_of_engine(*_SAME)
@option(
    "--disk-tokens",
    "Tokens that a cache on disk has room for; repeatable. Default: there is none.",
    click.IntRange(0),
    default=[0],
    multiple=True,
)
@option("--disk-rate", "Tokens a second that the disk reads or writes.", _DISK_RATE, 2e5)
@option(
    "--replicas",
    "Servers with such a pool each, behind the router by tokens; repeatable.",
    click.IntRange(1, 256),
    default=[1],
    multiple=True,
)
@option("--model", "Model whose measured costs are taken, and which tokenizes text.")
@options_of_engine(*FLAGS)
@option(
    "--costs",
    "What steps take: node, a made-up server of several accelerators; none, so that only the "
    "cache matters; or a JSON file. Default: the model's, without one node.",
    metavar="NAME|FILE",
)
@option("--calibrate", "Measure --model on this machine and keep it.", is_flag=True)
@option(
    "--tokens-per-block",
    "Of each of Mooncake's blocks of 512 tokens this many are simulated; 1 is the fastest, "
    "and answers are one token then.",
    click.Choice(_PER_BLOCK),
    default=str(BLOCK_TOKENS),
)
@option("--limit", f"Sessions. Default: all; {GENERATED} made-up ones.", _COUNT)
@option("--rate", "Times as many requests a second as in the trace.", _RATE, default=1.0)
@option("--users", "Sessions at a time, where the trace has no times.", _COUNT, default=8)
@option(
    "--think",
    "Seconds between an answer and the next call, where the trace does not say.",
    click.FloatRange(0),
    default=0.0,
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@option("--jobs", "Processes. Default: as many as processors.", _COUNT)
@option(
    "--advise",
    "Change one thing at a time (pool, policy, order, disk), and say what pays.",
    is_flag=True,
)
@option("--no-hints", "Leave out what calls say of what comes after.", is_flag=True)
@option("--url", "Play TRACE against this server, in real time, instead.")
@option("--api-key", "For --url.", envvar="RADIXLM_API_KEY")
@click.option("--json", "path", type=_PATH, help="Write JSON lines here.")
@option("--picture", "Draw a PNG here.", _PATH)
@option("--write", "Only write the trace, token-exact, here.", _PATH)
def command(trace: str | None, **options: Any) -> None:
    """Replay TRACE with other settings: the engine's own scheduler and cache on a virtual clock.
    Flags of cache and order may be given several times: each goes with each.

    TRACE is a file of JSON lines (Mooncake's; what `radixlm serve --record-trace` wrote; messages),
    a folder of such, or chats, agents, hinted, few-shot, rag or trees, which are made up.
    See docs/simulator.md.
    """
    if options["calibrate"]:
        _calibrate(options)
        return
    if trace is None:
        raise click.UsageError("Missing argument 'TRACE'.")
    names = ("model", "limit", "rate", "think", "seed", "no_hints")
    source = TraceSource(
        trace,
        tokens_per_block=int(options["tokens_per_block"]),
        **{name: options[name] for name in names},
    )
    if options["write"] is not None:
        problems = Problems()
        count = write_trace(options["write"], source.open(problems))
        show_problems([problems])
        click.echo(f"wrote {counted(count, 'call')} to {options['write']}")
        return
    if options["url"] is not None:
        _play(source, options)
    else:
        _simulate(source, options)


def _play(source: TraceSource, options: dict[str, Any]) -> None:
    with tqdm(total=source.count(), unit=" calls", dynamic_ncols=True, disable=None) as bar:
        done = played(source, options["url"], options["api_key"], options["users"], bar.update)
    show_problems([done.problems])
    if not done.outcome.calls:
        failed = counted(done.problems.count, "call")
        raise click.ClickException(f"{options['url']} answered no call; {failed} failed")
    show([done.outcome])
    if options["path"] is not None:
        options["path"].write_text(json.dumps(asdict(done.outcome)) + "\n")


def _simulate(source: TraceSource, options: dict[str, Any]) -> None:
    path, picture = options["path"], options["picture"]
    if picture is not None:
        check_picture(picture)
    costs = _costs(options)
    sizes = [DiskSize(tokens, options["disk_rate"]) for tokens in options["disk_tokens"]]
    runs = [
        SimRun(source, config, costs, options["users"], disk if disk.tokens else None, replicas)
        for config in _configs(options)
        for disk in sizes
        for replicas in options["replicas"]
    ]
    variants = [Variation("", run) for run in runs]
    if options["advise"]:
        if len(runs) > 1:
            raise ConfigError("--advise begins with one setting: give each flag once")
        variants += variations(runs[0], options["disk_rate"])
    runs = [run for _, run in variants]
    calls = source.count()
    total = None if calls is None else calls * len(runs)
    with tqdm(total=total, unit=" calls", dynamic_ncols=True, disable=None) as bar:
        done = list(measure_all(runs, options["jobs"] or os.cpu_count() or 1, bar.update))
    outcomes = [each.outcome for each in done]
    if options["advise"]:
        texts = [text for text, _ in variants[1:]]
        show_gains(outcomes[0], gains(outcomes[0], texts, outcomes[1:]))
    else:
        show(outcomes)
    show_problems(each.problems for each in done)
    if picture is not None:
        draw(picture, outcomes)
        click.echo(f"drew {picture}")
    if path is not None:
        path.write_text("")
        for outcome in outcomes:
            append_json(path, asdict(outcome))
        best = max(outcomes, key=lambda each: each.hit_rate)
        click.echo(json.dumps({"workload": "sim", "settings": len(outcomes), "best": asdict(best)}))
    if not any(outcome.calls for outcome in outcomes):
        left = max(outcome.left_out for outcome in outcomes)
        raise click.ClickException(f"no call could be played; {left} left out")


def _configs(options: dict[str, Any]) -> list[EngineConfig]:
    """Each of what is varied with each. Raises ConfigError."""
    varied = [options[name] for name in _VARIED]
    varied[0] = [tokens or _POOL for tokens in varied[0]]
    same = {name: options[name] for name in ("model", *_SAME, *FLAGS)}
    same["disk_cache"] = _DISK if any(options["disk_tokens"]) else None
    return [
        EngineConfig(**dict(zip(_VARIED, setting, strict=True)), **same)
        for setting in product(*varied)
    ]


def _costs(options: dict[str, Any]) -> Costs:
    place, model = options["costs"], options["model"]
    if place is None:
        return made_up("node") if model is None else kept_costs(_configs(options)[0])
    return read_costs(Path(place)) if Path(place).is_file() else made_up(place)


def _calibrate(options: dict[str, Any]) -> None:
    first, *others = _configs(options)
    if others:
        raise ConfigError("--calibrate measures one setting: give each flag once")
    config = replace(first, kv_tokens=options["kv_tokens"][0], disk_cache=None)
    with tqdm(unit=" figures", dynamic_ncols=True, disable=None) as bar:
        costs = measured(config, bar.update)
    path = keep_costs(costs, config)
    click.echo(f"measured {costs.name} on {costs.about['processor']}: {path}")
    click.echo(json.dumps({"workload": "calibrate", **asdict(costs)}))
