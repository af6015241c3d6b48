"""The parity table: every architecture against transformers, in every way the engine can run.

    python -m benchmarks.parity [--prompts 64] [--tokens 64] [--device cuda] [--read-together]
                                [--architecture llama ...] [--setting "cache off" ...]
                                [--every 3 [--first 1]] [--fields '{"sliding_window": 24}']
                                 [--tp-size 2] [--drafts] [--states]
    python -m benchmarks.parity --places [--prompts 64] [--tokens 64]

--fields: of config.json, of all models. --read-together: every shared node is one read for all its
rows, as it is in larger models; in these small ones it does not pay, and each row reads by itself.
What is stored is read, however fast computing it would be. --drafts: with drafts from the tree, of
which some must be right. --states: models that carry states and those whose index has rows beside,
the first ones in settings of their own, too; a place that one does not have is told with the
reason. --places: models with windows or states, in every place, with one rank and two, cold, warm,
restored, and after `kill -9`.
Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks import parity_places
from benchmarks.parity_settings import (
    SETTINGS,
    STATE_SETTINGS,
    Difference,
    Outcome,
    Setting,
    logit_difference,
    make_prompts,
    run_setting,
)
from benchmarks.rows import show_rows
from radixlm.attention import backends
from radixlm.core.errors import ConfigError
from radixlm.scheduler import restoring
from radixlm.testing.hybrids import HYBRIDS
from radixlm.testing.reference import ARCHITECTURES, Greedy, greedy, load_reference, make_checkpoint

VOCAB = 320
STATEFUL = (*HYBRIDS, "deepseek_v32", "glm_moe_dsa", "axk2")


def main(arguments: Sequence[str] | None = None) -> int:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--prompts", type=int, default=64)
    options.add_argument("--tokens", type=int, default=64)
    options.add_argument("--device", default="cpu")
    options.add_argument("--read-together", action="store_true")
    options.add_argument(
        "--architecture", nargs="+", choices=sorted({*ARCHITECTURES, *parity_places.FAMILIES})
    )
    options.add_argument("--fields", type=json.loads, default={}, metavar="JSON")
    options.add_argument(
        "--setting", nargs="+", choices=[each.name for each in (*SETTINGS, *STATE_SETTINGS)]
    )
    options.add_argument("--every", type=int, default=1, help="so many'th setting; default: 1")
    options.add_argument("--first", type=int, default=0, help="of them; default: 0")
    options.add_argument("--tp-size", type=int, default=1, help="ranks; default: 1")
    options.add_argument("--drafts", action="store_true", help="with drafts from the tree")
    options.add_argument("--states", action="store_true", help="models with states or side rows")
    options.add_argument("--places", action="store_true", help="windows and states, by place")
    args = options.parse_args(arguments)
    restoring.READING_TO_COMPUTING = 1_000_000
    setattr(restoring.Pace, "learn_computed", lambda *_: None)  # noqa: B010
    if args.places:
        return _by_place(args.architecture, make_prompts(args.prompts, VOCAB), args.tokens)
    drafts = "tree" if args.drafts else "off"
    more = {"tp_size": args.tp_size, "speculative_algorithm": drafts}
    settings = [replace(each, flags=each.flags | more) for each in (*SETTINGS, *STATE_SETTINGS)]
    settings = [each for each in settings if args.setting is None or each.name in args.setting]
    settings = settings[args.first :: args.every]
    if args.read_together:
        for kind in backends.SHARING:
            backends.SHARING[kind] = (1, 0, 1)
    started = time.monotonic()
    prompts = make_prompts(args.prompts, VOCAB)
    report: dict[str, Any] = {"prompts": args.prompts, "tokens": args.tokens}
    console = Console()
    good = True
    with tempfile.TemporaryDirectory() as scratch:
        names = args.architecture or (STATEFUL if args.states else ARCHITECTURES)
        for seed, architecture in enumerate(names):
            folder = Path(scratch) / architecture
            make_checkpoint(folder, architecture, seed=seed, **args.fields)
            difference = logit_difference(folder, prompts, args.device)
            expected = greedy(load_reference(folder), prompts, args.tokens)
            outcomes = [
                _outcome(folder, setting, prompts, expected, args.device)
                for setting in settings
                if architecture in HYBRIDS or not setting.states
            ]
            console.print(_table(architecture, difference, outcomes))
            good &= difference.good and _all_good(outcomes)
            good &= any(each.accepted for each in outcomes) == args.drafts
            report[architecture] = {
                "largest_logit_difference": difference.largest,
                "settings": {outcome.setting: vars(outcome) for outcome in outcomes},
            }
    report["passed"] = good
    report["seconds"] = round(time.monotonic() - started, 1)
    print(json.dumps(report))
    return 0 if good else 1


def _by_place(names: list[str] | None, prompts: list[list[int]], tokens: int) -> int:
    # Longer than two windows.
    prompts = [one + other for one, other in zip(prompts, reversed(prompts), strict=True)]
    found: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory() as scratch:
        for seed, architecture in enumerate(names or parity_places.FAMILIES):
            folder = make_checkpoint(Path(scratch) / architecture, architecture, seed=seed)
            expected = greedy(load_reference(folder), prompts, tokens)
            found += parity_places.rows(folder, Path(scratch), prompts, expected)
    show_rows("windows, by place", found)
    cells = [str(cell) for row in found for cell in row.values()]
    good = all(right == n for right, of, n in (cell.partition(" of ") for cell in cells) if of)
    print(json.dumps({"places": found, "passed": good}))
    return 0 if good else 1


def _outcome(
    folder: Path, setting: Setting, prompts: list[list[int]], expected: Greedy, device: str
) -> Outcome:
    """What a setting gives. A place that the model does not have is told with the reason."""
    try:
        return run_setting(folder, setting, prompts, expected, device)
    except ConfigError as error:
        if not setting.place:
            raise
        return Outcome(setting.name, refused=str(error))


def _all_good(outcomes: list[Outcome]) -> bool:
    wanted = {setting.name: setting.retracts for setting in (*SETTINGS, *STATE_SETTINGS)}
    return all(
        outcome.refused
        or (not outcome.different and (outcome.retractions > 0) == wanted[outcome.setting])
        for outcome in outcomes
    )


def _table(architecture: str, difference: Difference, outcomes: list[Outcome]) -> Table:
    table = Table(title=f"{architecture}: largest logit difference {difference.largest:.1e}")
    for item in fields(Outcome):
        table.add_column(item.name, justify="left" if item.type == "str" else "right")
    for outcome in outcomes:
        table.add_row(*(str(value) for value in vars(outcome).values()))
    return table


if __name__ == "__main__":
    sys.exit(main())
