"""`radixlm bench`: workloads and random checkpoints."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any, Literal, TypeVar, get_args

import click
from tqdm import tqdm

from radixlm.bench import bench_reports
from radixlm.bench.drafts_command import command as drafts
from radixlm.bench.frontend_programs import AT_ONCE, CHANGES, FrontendRow, make_twins
from radixlm.bench.frontend_programs import run as run_frontend
from radixlm.bench.paper_run import MODES, Setup, WorkloadResult, run
from radixlm.bench.quantized_command import command as quantized
from radixlm.bench.quantized_command import shape_option
from radixlm.bench.tables import append_json, check_picture
from radixlm.bench.workloads import WORKLOADS, SharedPromptOnly, Workload
from radixlm.core.errors import counted
from radixlm.kernels.jit import user_store
from radixlm.models import ModelConfig, load_config
from radixlm.models.decoder import product_shapes
from radixlm.products.product_table import ProductTable
from radixlm.testing.checkpoints import SHAPES, write_random_checkpoint
from radixlm.text.tokenizer import Tokenizer

Dtype = Literal["bfloat16", "float32"]
Command = Callable[..., Any]
R = TypeVar("R", WorkloadResult, FrontendRow)


@click.group("bench")
def command() -> None:
    """Measure workloads, write random checkpoints."""


command.add_command(quantized)
command.add_command(drafts)


def _dtype_option(default: Dtype) -> Callable[[Command], Command]:
    return click.option(
        "--dtype", type=click.Choice(get_args(Dtype)), default=default, show_default=True
    )


@contextmanager
def _setup(model: str | None, shape: str, dtype: Dtype, **others: Any) -> Iterator[Setup]:
    """The setup of the folder given, or of a random checkpoint that lives as long as the
    measurement.
    """
    with tempfile.TemporaryDirectory(prefix="radixlm-bench-") as scratch:
        folder = Path(model) if model else Path(scratch) / shape
        if not model:
            write_random_checkpoint(shape, folder, dtype=dtype)
        yield Setup(
            model=model or str(folder),
            shape=folder.name,
            vocab_size=load_config(folder).vocab_size,
            dtype=dtype,
            **others,
        )


@command.command("make-checkpoint")
@click.argument("shape", type=click.Choice(list(SHAPES)))
@click.argument("folder", type=click.Path(path_type=Path))
@_dtype_option("bfloat16")
@click.option("--seed", type=int, default=0, show_default=True)
def make_checkpoint(shape: str, folder: Path, dtype: Dtype, seed: int) -> None:
    """Write a checkpoint of a known SHAPE with random weights into FOLDER.

    It can be served and measured; what it says means nothing.
    """
    write_random_checkpoint(shape, folder, dtype=dtype, seed=seed)
    click.echo(f"wrote {shape} to {folder}; try: radixlm serve {folder}")


@command.command("kernels")
@click.argument("model", required=False)
@shape_option("smollm-135m")
@_dtype_option("bfloat16")
def kernels(model: str | None, shape: str, dtype: Dtype) -> None:
    """The ways to multiply by each of a model's weights, timed on this machine, and which is taken.

    A start measures them once and keeps them beside the compiled kernels; this does so anew. The
    last line is JSON.
    """
    config = load_config(Path(model)) if model else ModelConfig.from_hf(SHAPES[shape])
    table = ProductTable(user_store())
    shapes = tqdm(product_shapes(config, dtype), unit=" shapes", leave=False)
    found = {shape: table.times(shape, anew=True) for shape in shapes}
    bench_reports.show_products(f"{Path(model).name if model else shape}, {dtype}", found)
    click.echo(json.dumps(bench_reports.products_summary(found)))


@command.command("shared-prefix")
@click.argument("model", required=False)
@shape_option("smollm-135m")
@_dtype_option("bfloat16")
@click.option("--requests", "count", type=click.IntRange(1), default=64, show_default=True)
@click.option("--shared", type=click.IntRange(1), default=1_000, show_default=True, help="Tokens.")
@click.option("--own", type=click.IntRange(1), default=50, show_default=True, help="Tokens.")
@click.option("--out", type=click.IntRange(1), default=32, show_default=True, help="Tokens.")
@click.option("--page-size", type=int, default=1, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="In turns.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write JSON lines here.")
def shared_prefix(
    model: str | None,
    shape: str,
    dtype: Dtype,
    page_size: int,
    rounds: int,
    path: Path | None,
    seed: int,
    **sizes: int,
) -> None:
    """Requests over one shared prefix, with the cache on and off, in turns.

    With --json the rows go there, and the last line printed is JSON.
    """
    numbers = SharedPromptOnly(**sizes)
    workload = Workload("shared-prefix", numbers)
    # All are under way at once, as are the warm-up's.
    pages = {"page_size": page_size, "max_queued_requests": numbers.count + 100}
    modes = {"on": pages, "off": {**pages, "disable_radix_cache": True}}
    with _setup(model, shape, dtype, seed=seed, modes=modes) as setup:
        plan = setup.plan(workload)
        with _progress(rounds * len(modes) * plan.requests) as bar:
            found = list(run([(workload, plan)], [*modes], setup, rounds=rounds, done=bar.update))
    rows = [_shared_prefix_row(row, numbers, page_size) for row in found]
    contrast = bench_reports.show_shared_prefix(
        f"{counted(numbers.count, 'request')} x ({numbers.shared:,} shared + {numbers.own} "
        f"own tokens), {numbers.out} out: {setup.shape}, {dtype}",
        rows,
    )
    if path is None:
        return
    path.write_text("")
    for row in rows:
        append_json(path, row)
    report: dict[str, Any] = {"workload": workload.name, "model": setup.shape, "dtype": dtype}
    report["off_over_on"] = round(contrast.ratio, 3)
    shown = ("wall_s", "computed_tokens", "hit_rate", "best_hit_rate")
    report |= {row["mode"]: {name: row[name] for name in shown} for row in rows}
    click.echo(json.dumps(report))


def _shared_prefix_row(
    row: WorkloadResult, numbers: SharedPromptOnly, page_size: int
) -> dict[str, Any]:
    """A row of the report. best_hit_rate: the prefix's whole pages, computed but once. wall_s: the
    median.
    """
    possible = (numbers.count - 1) * (numbers.shared - numbers.shared % page_size)
    wall, output = median(row.walls_s), numbers.count * numbers.out
    return {
        **asdict(row),
        "expected_cached_tokens": possible if row.mode == "on" else 0,
        "output_tokens": output,
        "best_hit_rate": round(possible / row.prompt_tokens, 6),
        "wall_s": round(wall, 4),
        "output_tokens_per_s": round(output / wall, 2),
    }


@command.command("paper")
@click.argument("model", required=False)
@shape_option("10m")
@_dtype_option("float32")
@click.option(
    "--only", multiple=True, type=click.Choice(list(WORKLOADS)), help="A workload; repeatable."
)
@click.option(
    "--modes",
    multiple=True,
    type=click.Choice(list(MODES)),
    default=list(MODES),
    show_default=True,
    help="Cache off, orders, pages of 16; repeatable.",
)
@click.option(
    "--scale",
    type=click.FloatRange(0, min_open=True),
    default=1.0,
    show_default=True,
    help="Times as many requests, agents, questions.",
)
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True)
@click.option(
    "--pool",
    type=click.FloatRange(0, min_open=True),
    help="KV pool over the workload's distinct tokens, such as 0.3. Default: all fits.",
)
@click.option(
    "--frontend",
    is_flag=True,
    help="Programs in the frontend language, beside the same requests without it.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=3,
    show_default=True,
    help="How often each workload runs in all modes, in turns; times are medians.",
)
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write JSON lines here.")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw a PNG here.")
@click.pass_context
def paper(
    context: click.Context,
    /,
    model: str | None,
    shape: str,
    dtype: Dtype,
    only: Sequence[str],
    modes: Sequence[str],
    frontend: bool,
    rounds: int,
    path: Path | None,
    picture: Path | None,
    **sizes: Any,
) -> None:
    """The workloads of SGLang's paper, with the cache off and on.

    --json gets one line per workload and mode, as soon as it is measured; the last line printed is
    a summary in JSON then.
    """
    if frontend:
        _check_choices(context, only)
    if picture is not None:
        check_picture(picture)
    if path is not None:
        path.write_text("")
    with _setup(model, shape, dtype, **sizes) as setup:
        if frontend:
            report = _compare(setup, only or list(CHANGES), rounds, path, picture)
        else:
            report = _measure(setup, only or list(WORKLOADS), modes, rounds, path, picture)
    if picture is not None:
        click.echo(f"drew {picture}")
    if path is not None:
        click.echo(json.dumps(report))


def _check_choices(context: click.Context, only: Sequence[str]) -> None:
    """Raise UsageError for what does not go with --frontend."""
    if context.get_parameter_source("modes") is not click.core.ParameterSource.DEFAULT:
        raise click.UsageError("--frontend has no --modes: it compares with and without")
    for name in only:
        if name not in CHANGES:
            raise click.UsageError(f"with --frontend there is no {name!r}: {', '.join(CHANGES)}")


def _measure(
    setup: Setup,
    names: Sequence[str],
    modes: Sequence[str],
    rounds: int,
    path: Path | None,
    picture: Path | None,
) -> dict[str, Any]:
    """Measure these workloads, show the rows, give the summary."""
    planned = [(WORKLOADS[name], setup.plan(WORKLOADS[name])) for name in names]
    total = rounds * len(modes) * sum(plan.requests for _, plan in planned)
    with _progress(total) as bar:
        measured = run(
            planned, modes, setup, rounds=rounds, started=bar.set_description, done=bar.update
        )
        rows = _saved(measured, path)
    room = "everything" if setup.pool is None else f"{100 * setup.pool:g} % of the tokens"
    title = f"The workloads of SGLang's paper: {setup.shape} in {setup.dtype}, room for {room}"
    bench_reports.show(title, rows)
    if picture is not None:
        bench_reports.draw(picture, title, rows)
    return bench_reports.summary(rows)


def _compare(
    setup: Setup, names: Sequence[str], rounds: int, path: Path | None, picture: Path | None
) -> dict[str, Any]:
    twins = make_twins(names, Tokenizer.load(Path(setup.model)), setup.vocab_size)
    with _progress(2 * rounds * sum(setup.plan(each.workload).requests for each in twins)) as bar:
        measured = run_frontend(twins, setup, rounds, started=bar.set_description, done=bar.update)
        rows = _saved(measured, path)
    title = f"Programs in the frontend language: {setup.shape} in {setup.dtype}, {AT_ONCE} at once"
    bench_reports.show_frontend(title, rows)
    if picture is not None:
        bench_reports.draw_frontend(picture, title, rows)
    return bench_reports.frontend_summary(rows)


def _progress(requests: int) -> tqdm[Any]:
    return tqdm(total=requests, unit=" requests", dynamic_ncols=True)


def _saved(rows: Iterable[R], path: Path | None) -> list[R]:
    """All rows; each is saved when it is there."""
    found = []
    for row in rows:
        found.append(row)
        if path is not None:
            append_json(path, asdict(row))
    return found
