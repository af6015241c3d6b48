"""`radixlm bench quantized`: the command, its table and its figures."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import torch
from tqdm import tqdm

from radixlm.bench.machine import Timing, bandwidths, instructions
from radixlm.bench.quantized_run import (
    GGUF_TYPES,
    PEERS,
    Contest,
    QuantizedTimes,
    Sizes,
    gguf_file,
    growth,
    measure,
    of_file,
    of_format,
)
from radixlm.bench.tables import print_table, processor, say
from radixlm.testing.checkpoints import SHAPES, write_random_checkpoint

_TIMING = Timing(1.0)
_EMPTY = "tiny"
_COLUMNS = (
    *("weights", "read, MB", "decode, tokens/s", "of the bound", "ours / theirs"),
    *("prefill, tokens/s", "ours / theirs"),
)


def shape_option(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option of commands that take a model folder or make one."""
    return click.option(
        "--shape",
        type=click.Choice(list(SHAPES)),
        default=default,
        show_default=True,
        help="Random model to measure with, when no MODEL folder is given.",
    )


def formats_option(
    names: Iterable[str], default: str
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """The option of formats that a command measures. default: in words."""
    return click.option(
        "--format",
        "formats",
        multiple=True,
        type=click.Choice(list(names)),
        help=f"Of weights; repeatable. Default: {default}.",
    )


@click.command("quantized")
@click.argument("model", required=False)
@shape_option("smollm-135m")
@formats_option(PEERS, "all, or with --gguf none")
@click.option(
    "--gguf",
    "kinds",
    multiple=True,
    type=click.Choice(list(GGUF_TYPES)),
    help="Type of a GGUF file that llama.cpp makes and both load; repeatable.",
)
@click.option("--llama-python", "python", metavar="PATH", help="A Python that has llama_cpp.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="In turns.")
@click.option(
    "--prompt", type=click.IntRange(1), default=Sizes().prompt, show_default=True, help="Tokens."
)
@click.option(
    "--answer", type=click.IntRange(2), default=Sizes().answer, show_default=True, help="Tokens."
)
@click.option(
    "--prefill", type=click.IntRange(1), default=Sizes().prefill, show_default=True, help="Tokens."
)
@click.option("--threads", type=click.IntRange(1), help="Of both. Default: as many as torch takes.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the last line here.")
def command(
    model: str | None,
    shape: str,
    formats: Sequence[str],
    kinds: Sequence[str],
    python: str | None,
    rounds: int,
    threads: int | None,
    path: Path | None,
    **sizes: int,
) -> None:
    """Weights in 16, 8 and 4 bits: speed of one stream and of prefill, and memory while loading.

    MODEL: a folder, or a GGUF file, which is measured as it is. With --llama-python also llama.cpp
    with the same weights, in turns. Rates are those of the fastest round. The bound is what reading
    the weights takes from memory, of a file as many bytes as it has. The last line is JSON.
    """
    threads = threads or torch.get_num_threads()
    read = bandwidths(_TIMING)["read"]
    with tempfile.TemporaryDirectory(prefix="radixlm-bench-") as scratch:
        place = Path(scratch)
        folder = Path(model) if model else write_random_checkpoint(shape, place / shape)
        contests = _contests(folder, formats, kinds, python, place)
        with tqdm(total=len(contests) + 1, leave=False) as bar:
            memory = dict(_memory(contests, place, bar))
        with tqdm(leave=False, bar_format="{desc} ({elapsed})") as bar:
            found = measure(
                contests,
                threads=threads,
                rounds=rounds,
                sizes=Sizes(**sizes),
                python=python,
                started=bar.set_description,
            )
    # Memory has other speeds by the minute.
    read = max(read, bandwidths(_TIMING)["read"])
    rows = list(_rows(found, read, Sizes(**sizes)))
    report = {
        "benchmark": "quantized",
        "model": folder.name,
        "processor": processor(),
        "instructions": instructions(),
        "threads": threads,
        "gb_per_s": round(read / 1e9, 1),
        **Sizes(**sizes)._asdict(),
        "rounds": rounds,
        "rows": rows,
        "memory": memory,
    }
    _show(report)
    line = json.dumps(report)
    if path is not None:
        path.write_text(line + "\n", encoding="utf-8")
    click.echo(line)


def _contests(
    model: Path, formats: Sequence[str], kinds: Sequence[str], python: str | None, place: Path
) -> list[Contest]:
    """The weights that are measured, of a folder or a file. place: where files are written."""
    if model.suffix == ".gguf":
        if formats or kinds:
            raise click.UsageError("a GGUF file is measured as it is, without --format and --gguf")
        return [of_file(model, python)]
    if kinds and python is None:
        raise click.UsageError("llama.cpp makes the files of --gguf: name its --llama-python")
    formats = formats or ([] if kinds else list(PEERS))
    files = [gguf_file(model, place, str(python), kind, pure=False) for kind in kinds]
    made = [of_format(model, name, place, python) for name in formats]
    return made + [of_file(path, python) for path in files]


def _memory(
    contests: Sequence[Contest], place: Path, bar: tqdm[Any]
) -> Iterator[tuple[str, dict[str, float]]]:
    """The memory of each, in MB: the most while loading, what stays, the weights' part of that, and
    the most of a tiny model.
    """
    bar.set_description("memory of a tiny model")
    tiny = write_random_checkpoint(_EMPTY, place / "no-weights")
    for contest in contests:
        bar.update()
        bar.set_description(f"memory of {contest.name}")
        growth(contest.model, contest.flags)  # compiles what the first load does
        whole, empty = (growth(model, contest.flags) for model in (contest.model, tiny))
        held = contest.bytes_held
        yield (
            contest.name,
            {
                "peak_mb": round(whole.most / 1e6, 1),
                "stays_mb": round(whole.stays / 1e6, 1),
                "held_mb": round(held / 1e6, 1),
                "tiny_mb": round(empty.most / 1e6, 1),
                "peak_over_stays": round(whole.most / whole.stays, 2),
                "without_tiny": round((whole.most - empty.most) / held, 2),
            },
        )


def _rows(found: Sequence[QuantizedTimes], read: float, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Tokens a second of the fastest round, and what of ours that is; seconds of all rounds."""
    ours = {made.format: made for made in found if made.is_ours}
    for made in found:
        own = ours[made.format]
        yield {
            "format": made.format,
            "name": made.name,
            "mb_read": round(made.bytes_read / 1e6, 1),
            "flash": made.flash,
            "decode_per_s": round(1 / min(made.decode), 1),
            "share_of_bound": round(made.bytes_read / read / min(made.decode), 3),
            "decode_theirs_over_ours": round(min(made.decode) / min(own.decode), 3),
            "prefill_per_s": round(sizes.prefill / min(made.prefill), 1),
            "prefill_theirs_over_ours": round(min(made.prefill) / min(own.prefill), 3),
            "decode_s": [round(seconds, 6) for seconds in made.decode],
            "prefill_s": [round(seconds, 5) for seconds in made.prefill],
        }


def _show(report: Mapping[str, Any]) -> None:
    title = (
        f"{report['model']}, {report['threads']} threads of {report['processor']}, "
        f"{report['instructions']}, {report['gb_per_s']} GB/s"
    )
    rows = []
    for row in report["rows"]:
        is_ours = row["format"] == row["name"]
        ratios = [row["decode_theirs_over_ours"], row["prefill_theirs_over_ours"]]
        decode, prefill = ("" if is_ours else f"{ratio:.2f}" for ratio in ratios)
        name = row["name"] if is_ours else f"  llama.cpp {row['name']}"
        speeds = (f"{row['decode_per_s']:,}", f"{row['share_of_bound']:.0%}", decode)
        prefills = (f"{row['prefill_per_s']:,}", prefill)
        rows.append([name, f"{row['mb_read']:,}", *speeds, *prefills])
    print_table(title, _COLUMNS, [rows])
    for name, row in report["memory"].items():
        say(
            f"{name}: loading takes {row['peak_mb']:,} MB at most, {row['peak_over_stays']:.2f} of "
            f"what stays, of which weights are {row['held_mb']:,} MB; a tiny model takes "
            f"{row['tiny_mb']:,} MB"
        )
