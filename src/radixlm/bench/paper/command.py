"""`radixlm bench paper`: the workloads of SGLang's paper."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import click
from tqdm import tqdm

from radixlm.bench.folder import Dtype, model_folder, shape_option
from radixlm.bench.paper.frontend.report import check_choices, compare
from radixlm.bench.paper.picture import check_picture, draw
from radixlm.bench.paper.plan import Plan
from radixlm.bench.paper.run import MODES, Row, Setup, run
from radixlm.bench.paper.summary import summary
from radixlm.bench.paper.table import append_json, show
from radixlm.bench.paper.workloads import WORKLOADS, Workload
from radixlm.models import load_config


@click.command("paper")
@click.argument("model", required=False)
@shape_option("10m")
@click.option("--dtype", type=click.Choice(get_args(Dtype)), default="float32", show_default=True)
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
    help="Each workload so many times in all modes, in turns; times are medians.",
)
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write JSON lines here.")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw a PNG here.")
def paper(
    model: str | None,
    shape: str,
    dtype: Dtype,
    only: Sequence[str],
    modes: Sequence[str],
    scale: float,
    seed: int,
    pool: float | None,
    frontend: bool,
    rounds: int,
    path: Path | None,
    picture: Path | None,
) -> None:
    """The workloads of SGLang's paper, with the cache off and on.

    --json gets one line per workload and mode, as soon as it is measured; the last line printed is
    a summary in JSON then.
    """
    check_choices(only, frontend=frontend)
    if picture is not None:
        check_picture(picture)
    if path is not None:
        path.write_text("")
    with model_folder(model, shape, dtype) as folder:
        setup = Setup(
            model=folder,
            shape=Path(model).name if model else shape,
            vocab_size=load_config(Path(folder)).vocab_size,
            dtype=dtype,
            scale=scale,
            seed=seed,
            pool=pool,
        )
        if frontend:
            compare(setup, only, rounds, path, picture)
            return
        chosen = [WORKLOADS[name] for name in only or WORKLOADS]
        rows = _with_bar(chosen, modes, setup, rounds, path)
    room = "room for everything" if pool is None else f"room for {100 * pool:g} % of the tokens"
    title = f"The workloads of SGLang's paper: {setup.shape} in {dtype}, {room}"
    show(title, rows)
    if picture is not None:
        draw(picture, title, rows)
        click.echo(f"drew {picture}")
    if path is not None:
        click.echo(json.dumps(summary(rows)))


def _with_bar(
    workloads: Sequence[Workload],
    modes: Sequence[str],
    setup: Setup,
    rounds: int,
    path: Path | None,
) -> list[Row]:
    """Measure everything under one progress bar, and save each row when it is there."""
    planned: list[tuple[Workload, Plan]] = [(item, setup.plan(item)) for item in workloads]
    total = rounds * len(modes) * sum(plan.requests for _, plan in planned)
    rows = []
    with tqdm(total=total, unit=" requests", dynamic_ncols=True) as bar:
        for row in run(
            planned,
            modes,
            setup,
            rounds=rounds,
            started=lambda workload, mode: bar.set_description(f"{workload}, {mode}"),
            done=bar.update,
        ):
            rows.append(row)
            if path is not None:
                append_json(path, row)
    return rows
