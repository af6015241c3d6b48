"""`radixlm bench drafts`: the command, its table and its picture."""

from __future__ import annotations

import importlib
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import tokenizers
import torch
from tqdm import tqdm

from radixlm.assembly import DEMO_MODEL
from radixlm.bench.agent_traces import Encode, Session, read_traces
from radixlm.bench.draft_workloads import (
    EDIT,
    DraftWorkload,
    arriving,
    asked,
    edit,
    of_trace,
    without_repetition,
)
from radixlm.bench.drafts_run import DraftBench, Played
from radixlm.bench.quantized_command import formats_option, shape_option
from radixlm.bench.quantized_run import PEERS, flags
from radixlm.bench.tables import SMALL, check_picture, print_table, processor
from radixlm.core.config import EngineConfig
from radixlm.core.keys import Key
from radixlm.testing.checkpoints import write_random_checkpoint

_COLUMNS = (
    *("weights", "text", "streams", "off, tokens/s", "on, tokens/s", "on / off", "by processor"),
    *("tokens a step", "drafted", "right, %"),
)
# Slots beside those that the calls need: what the engine reserves.
_ROOM = 1024
# Times as many tokens of an edit are played, so that some of them differ.
_EDIT = 4
# Steps that a point of the picture is the mean of.
_WINDOW = 32


@click.command("drafts")
@click.argument("model", required=False)
@shape_option("qwen3-0.6b")
@formats_option((name for name in PEERS if name != "fp8"), "all, of a GGUF file its own")
@click.option(
    "--traces",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Recorded sessions: NAME.jsonl with `messages` a line, NAME/*.jsonl with `input` and "
    "`output` a line.",
)
@click.option("--only", "names", multiple=True, help="Name of a text; repeatable. Default: all.")
@click.option(
    "--tokenizer",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="A tokenizer.json for the texts. Default: the MODEL's, else the demo model's.",
)
@click.option(
    "--prompts",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Prompts that the MODEL answers itself: JSON lines with `kind` and `prompt`.",
)
@click.option("--streams", multiple=True, type=click.IntRange(1), help="Default: 1, 8 and 64.")
@click.option("--calls", type=click.IntRange(1), default=12, show_default=True, help="Of a text.")
@click.option("--rounds", type=click.IntRange(1), default=1, help="Of several streams.")
@click.option("--context", type=click.IntRange(2), default=512, show_default=True, help="Tokens.")
@click.option("--answer", type=click.IntRange(2), default=96, show_default=True, help="Tokens.")
@click.option("--draft", type=click.IntRange(1, 64), help="Most tokens of a draft.")
@click.option("--algorithm", type=click.Choice(["auto", "tree", "eagle3", "mtp"]), default="auto")
@click.option("--threads", type=click.IntRange(1), help="Default: as many as torch takes.")
@click.option("--picture", type=click.Path(path_type=Path), help="Draw tokens a step here, a .png.")
@click.option("--json", "path", type=click.Path(path_type=Path), help="Write the last line here.")
def command(
    model: str | None,
    shape: str,
    formats: Sequence[str],
    picture: Path | None,
    path: Path | None,
    threads: int | None,
    **options: Any,
) -> None:
    """Tokens a second with drafts and without, in turns, on the same texts.

    Recorded answers are replayed: the model computes every step, the sampler is given the recorded
    tokens, so time and what is accepted are both real. Of each trace some calls are played; the
    others are heard of by the drafts alone. Rates are of answers while all streams are busy, or
    where prompts arrive until all have ended. "By processor" compares seconds of processors. MODEL:
    a folder or a GGUF file. The last line is JSON.
    """
    if picture is not None:
        check_picture(picture)
    threads = threads or torch.get_num_threads()
    rows: list[dict[str, Any]] = []
    lines: dict[str, list[int]] = {}
    with tempfile.TemporaryDirectory(prefix="radixlm-bench-") as scratch:
        folder = Path(model) if model else write_random_checkpoint(shape, Path(scratch) / shape)
        is_file = folder.suffix == ".gguf"
        if is_file and formats:
            raise click.UsageError("a GGUF file is measured as it is, without --format")
        each = (
            {folder.stem: {"dtype": "bfloat16"}}
            if is_file
            else {name: flags(name) for name in formats or ("bf16", "int8", "int4")}
        )
        for name, its in each.items():
            for row, yields in _measured(folder, {**its, "threads": threads}, options, bool(model)):
                rows.append({"weights": name, **row})
                if row["streams"] == 1:
                    lines.setdefault(row["text"], yields)
    if not rows:
        raise click.UsageError(f"--only: no text is named {' or '.join(options['names'])}")
    report = {
        "benchmark": "drafts",
        "model": folder.name,
        "processor": processor(),
        "threads": threads,
        **{name: options[name] for name in ("calls", "context", "answer", "draft", "algorithm")},
        "rows": rows,
    }
    _show(report)
    if picture is not None:
        _draw(picture, lines)
    line = json.dumps(report)
    if path is not None:
        path.write_text(line + "\n", encoding="utf-8")
    click.echo(line)


def _measured(
    model: Path, its: Mapping[str, Any], options: Mapping[str, Any], given: bool
) -> Iterator[tuple[dict[str, Any], list[int]]]:
    """The rows of an engine, with the tokens of each step."""
    streams = sorted(options["streams"] or (1, 8, 64))
    context, answer = options["context"], options["answer"]
    if options["draft"] is not None:
        its = {**its, "speculative_num_draft_tokens": options["draft"]}
    most = 2 * max(streams[-1], 2)  # calls that prompts are cached of: with drafts and without
    config = EngineConfig.from_flags(
        model=str(model),
        kv_tokens=2 * most * (context + answer) + _ROOM,
        speculative_algorithm=options["algorithm"],
        **its,
    )
    with DraftBench(config) as bench:
        encode = _encoder(bench, options["tokenizer"], given)
        for number in streams:
            for workload in _workloads(bench, encode, options, number):
                if not options["names"] or workload.name in options["names"]:
                    yield _played(bench, workload, answer, options["rounds"])


def _encoder(bench: DraftBench, tokenizer: Path | None, given: bool) -> Encode:
    if tokenizer is None and given:
        return bench.engine.tokenizer.encode_plain
    path = tokenizer or DEMO_MODEL / "tokenizer.json"
    made, vocab = tokenizers.Tokenizer.from_file(str(path)), bench.engine.info.vocab_size
    # A small model's ids end before the tokenizer's.
    return lambda text: (
        np.asarray(made.encode(text, add_special_tokens=False).ids, dtype=np.int32) % vocab
    )


def _workloads(
    bench: DraftBench, encode: Encode, options: Mapping[str, Any], streams: int
) -> Iterator[DraftWorkload]:
    context, answer = options["context"], options["answer"]
    count = options["calls"] if streams == 1 else 2 * streams
    edited = edit(encode, context)
    traces: list[tuple[str, list[Session]]] = []
    if options["traces"] is not None:
        traces = list(read_traces(options["traces"], encode))
    for name, sessions in traces:
        if streams <= len(sessions):
            made = of_trace(name, sessions, count, streams, context)
            yield made
            if streams > 1:
                yield arriving(made)
    text = np.concatenate([edited.lanes[0][0].call.answer, *(its[0][0][0] for _, its in traces)])
    yield without_repetition(text, count, streams, context, answer)
    if streams == 1:
        yield edited
        if options["prompts"] is not None:
            yield from asked(options["prompts"], lambda prompt: _chat(bench, prompt))


def _chat(bench: DraftBench, prompt: str) -> Key:
    template, tokenizer = bench.engine.chat_template, bench.engine.tokenizer
    if template is None:
        return tokenizer.encode(prompt)
    text = template.render([{"role": "user", "content": prompt}])
    return tokenizer.encode(text, add_special_tokens=False)


def _played(
    bench: DraftBench, workload: DraftWorkload, out: int, rounds: int
) -> tuple[dict[str, Any], list[int]]:
    streams, turns = len(workload.lanes), []
    with tqdm(desc=f"{workload.name}, {streams}", unit=" turns", leave=False) as bar:
        most = _EDIT * out if workload.name == EDIT else out
        for turn in bench.in_turns(workload, most, rounds):
            turns.append(turn)
            bar.update()
    on, off = (Played.joined(each) for each in zip(*turns, strict=True))
    rates = on.tokens / on.seconds, off.tokens / off.seconds
    right = sum(on.yields) - len(on.yields)
    row = {
        "text": workload.name,
        "streams": streams,
        "off_per_s": round(rates[1], 1),
        "on_per_s": round(rates[0], 1),
        "ratio": round(rates[0] / rates[1], 3),
        "cpu_ratio": round(on.tokens / on.cpu / (off.tokens / off.cpu), 3),
        "tokens_a_step": round(sum(on.yields) / len(on.yields), 3),
        "drafted_a_step": round(sum(on.drafted) / len(on.yields), 2),
        "right_percent": round(100 * right / max(sum(on.drafted), 1), 1),
        "right_by_place": on.right_by_place(),
        "equal": sum(a == b for a, b in zip(on.answers, off.answers, strict=True)),
        "calls": len(on.answers),
        "seconds": round(on.seconds + off.seconds, 1),
    }
    return row, list(on.yields)


def _show(report: Mapping[str, Any]) -> None:
    rows = [
        [
            row["weights"],
            row["text"],
            str(row["streams"]),
            *(f"{row[name]:,}" for name in ("off_per_s", "on_per_s")),
            *(f"{row[name]:.2f}" for name in ("ratio", "cpu_ratio", "tokens_a_step")),
            *(str(row[name]) for name in ("drafted_a_step", "right_percent")),
        ]
        for row in report["rows"]
    ]
    title = f"{report['model']}, {report['threads']} threads of {report['processor']}"
    print_table(title, _COLUMNS, [rows], left=2)


def _draw(path: Path, lines: Mapping[str, Sequence[int]]) -> None:
    """Tokens a step of one stream along what it wrote, text by text."""
    mpl = importlib.import_module("matplotlib")
    mpl.use("Agg")
    plt = importlib.import_module("matplotlib.pyplot")
    figure, axes = plt.subplots(figsize=(9, 4), layout="constrained")
    for name, yields in lines.items():
        window = min(_WINDOW, len(yields))
        mean = np.convolve(yields, np.full(window, 1 / window), "valid")
        axes.plot(np.cumsum(yields)[window - 1 :], mean, label=name, linewidth=1)
    axes.set_title(f"Tokens a step, a mean of {_WINDOW} steps", **SMALL)
    axes.set_xlabel("tokens of answers")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(loc="upper left", fontsize=8)
    figure.savefig(path, dpi=120)
    plt.close(figure)
