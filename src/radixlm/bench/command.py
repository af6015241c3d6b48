"""`radixlm bench`: workloads and random checkpoints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import get_args

import click
from tqdm import tqdm

from radixlm.bench.folder import Dtype, model_folder, shape_option
from radixlm.bench.paper.command import paper
from radixlm.bench.report import contrast, save, show
from radixlm.bench.shared_prefix import MODES, SharedPrefix, measure
from radixlm.core.errors import counted
from radixlm.testing.checkpoints import SHAPES, write_random_checkpoint


@click.group("bench")
def command() -> None:
    """Measure workloads, write random checkpoints."""


command.add_command(paper)


@command.command("make-checkpoint")
@click.argument("shape", type=click.Choice(list(SHAPES)))
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--dtype", type=click.Choice(get_args(Dtype)), default="bfloat16", show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def make_checkpoint(shape: str, folder: Path, dtype: Dtype, seed: int) -> None:
    """Write a checkpoint of a known SHAPE with random weights into FOLDER.

    It can be served and measured; what it says means nothing.
    """
    write_random_checkpoint(shape, folder, dtype=dtype, seed=seed)
    click.echo(f"wrote {shape} to {folder}; try: radixlm serve {folder}")


@command.command("shared-prefix")
@click.argument("model", required=False)
@shape_option("smollm-135m")
@click.option("--dtype", type=click.Choice(get_args(Dtype)), default="bfloat16", show_default=True)
@click.option("--requests", type=click.IntRange(1), default=64, show_default=True)
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
    requests: int,
    shared: int,
    own: int,
    out: int,
    page_size: int,
    seed: int,
    rounds: int,
    path: Path | None,
) -> None:
    """Requests over one shared prefix, with the cache on and off, in turns.

    With --json the rows go there, and the last line printed is JSON.
    """
    workload = SharedPrefix(requests=requests, shared=shared, own=own, out=out, seed=seed)
    with (
        model_folder(model, shape, dtype) as folder,
        tqdm(total=len(MODES) * rounds, unit=" runs", dynamic_ncols=True, leave=False) as bar,
    ):
        rows = measure(
            workload, folder, dtype=dtype, page_size=page_size, rounds=rounds, done=bar.update
        )
    name = Path(model).name if model else shape
    show(
        f"{counted(requests, 'request')} x ({shared:,} shared + {own} own tokens), {out} out: "
        f"{name}, {dtype}",
        rows,
    )
    if path is None:
        return
    save(path, rows)
    ratio = round(contrast(rows).ratio, 3)
    modes = {
        row.mode: {
            "wall_s": row.wall_s,
            "computed_tokens": row.computed_tokens,
            "hit_rate": row.hit_rate,
            "best_hit_rate": row.best_hit_rate,
        }
        for row in rows
    }
    summary = {"workload": "shared-prefix", "model": name, "dtype": dtype, "off_over_on": ratio}
    click.echo(json.dumps(summary | modes))
