"""The command behind `scripts/clients.py`."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from pkgutil import resolve_name

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from scripts.try_clients.agents_tools import run_agents_with_tools
from scripts.try_clients.contract import use_schemathesis
from scripts.try_clients.lm_eval_package import LmEval
from scripts.try_clients.load import use_aiperf
from scripts.try_clients.other_doors import DOORS, use_door
from scripts.try_clients.outcome import Outcome
from scripts.try_clients.report import Report
from scripts.try_clients.sections import SECTIONS, roomy, use_recorded
from scripts.try_clients.server import served

# By what each is used; imported when it is asked for, so that no other has to be installed.
_PACKAGES: Mapping[str, Sequence[str]] = {
    "openai": (
        "openai_package:use_openai",
        "openai_tools:use_openai_tools",
        "openai_responses:use_openai_responses",
        "openai_batches:use_openai_batches",
    ),
    "anthropic": ("anthropic_package:use_anthropic",),
    "pydantic-ai": ("agents_package:use_pydantic_ai",),
    "langchain": ("langchain_package:use_langchain",),
}
_LOADS = ("lm-eval", "aiperf")
_WITH_TOOLS = "agents-tools"
NAMES = (*_PACKAGES, *DOORS, *_LOADS, "schemathesis", *SECTIONS, _WITH_TOOLS)
_EXAMPLES = 10
# float32, as the reference is; a queue that one request can fill.
_FLAGS = ("--dtype", "float32", "--max-queued-requests", "100")
# Small, so that no case is long and many of them evict.
_SMALL = ("--context-length", "256", "--kv-tokens", "4096", "--request-timeout", "300")


def main() -> int:
    options = _options()
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()
    with (
        tempfile.TemporaryDirectory() as folder,
        Progress(*columns, TimeElapsedColumn(), transient=True) as progress,
    ):
        report = Report(progress)
        work = Path(options.keep or folder)
        work.mkdir(parents=True, exist_ok=True)
        _run_packages(report, work, options)
        _run_recorded(report, work, options)
        if _WITH_TOOLS in options.only:
            run_agents_with_tools(report, work, options.chat_templates)
        if "schemathesis" in options.only:
            with served(work, "small", _SMALL) as server:
                use = partial(
                    use_schemathesis,
                    server,
                    work,
                    examples=options.examples,
                    workers=options.workers,
                    progress=progress,
                )
                report.add("schemathesis", server, use)
    report.print()
    return 0 if report.good else 1


def _run_packages(report: Report, work: Path, options: argparse.Namespace) -> None:
    only: Sequence[str] = options.only
    if not {*_PACKAGES, *DOORS, *_LOADS} & set(only):
        return
    with served(work, "server", _FLAGS) as server:
        for name, places in _PACKAGES.items():
            for place in places if name in only else ():
                use = resolve_name(f"{__package__}.{place}")
                report.add(name, server, partial(use, server))
        for name in DOORS:
            if name in only:
                report.add(name, server, partial(use_door, name, server, work))
        lm_eval = LmEval(server, work)
        uses: list[tuple[str, Callable[[], Outcome]]] = [
            ("lm-eval", partial(lm_eval.completions, "huggingface")),
            ("lm-eval", partial(lm_eval.completions, "remote")),
            ("lm-eval", lm_eval.chat),
            ("aiperf", partial(use_aiperf, server, work)),
        ]
        for name, run in uses:
            if name in only:
                report.add(name, server, run)


def _run_recorded(report: Report, work: Path, options: argparse.Namespace) -> None:
    names = [name for name in SECTIONS if name in options.only]
    if not names:
        return
    with roomy(work) as server:
        for name in names:
            use = partial(use_recorded, name, server, work, keep=options.record)
            report.add(name, server, use)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="scripts/clients.py", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="CLIENT")
    parser.add_argument(
        "--examples",
        type=int,
        default=_EXAMPLES,
        help="of schemathesis for each operation, beyond those that cover the schema",
    )
    parser.add_argument("--workers", type=int, default=1, help="of schemathesis, side by side")
    parser.add_argument(
        "--record", action="store_true", help="write what clients sent into tests/server/recordings"
    )
    parser.add_argument(
        "--chat-templates",
        nargs="+",
        type=Path,
        default=(),
        metavar="FILE",
        help="that agents-tools serves the demo model with, one after the other",
    )
    parser.add_argument("--keep", help="folder for all logs and reports; by default they are lost")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
