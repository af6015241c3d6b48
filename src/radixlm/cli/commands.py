"""The command `radixlm`. Subcommands' modules are imported only when they are called; what takes
seconds to import, they import only when they run.
"""

from __future__ import annotations

import difflib
import os
import sys
from pathlib import Path

import click

from radixlm.cli.start import named
from radixlm.core.errors import ConfigError, ModelError, RadixLMError

# Numba, which compiles our kernels, takes its settings from here.
_NUMBA_SETTINGS = Path(".numba_config.yaml")

# Where each click command is, and its line in `radixlm --help`.
SUBCOMMANDS = {
    "serve": ("radixlm.cli.model_commands:serve", "Serve a model over HTTP, as OpenAI's API."),
    "deploy": (
        "radixlm.cli.model_commands:deploy",
        "Serve a model by several replicas, on Ray Serve.",
    ),
    "pull": ("radixlm.cli.model_commands:pull", "Fetch a model from the Hugging Face Hub."),
    "chat": ("radixlm.cli.model_commands:chat", "Talk to a model in the terminal."),
    "generate": ("radixlm.cli.model_commands:generate", "Continue prompts and print the answers."),
    "batch": (
        "radixlm.cli.batch_command:command",
        "Answer a file of requests, each shared prefix computed once.",
    ),
    "explain": (
        "radixlm.cli.model_commands:explain",
        "Tell where two requests stop sharing a prefix.",
    ),
    "check": (
        "radixlm.cli.check_command:command",
        "Tell what would be served of a model, without serving.",
    ),
    "top": ("radixlm.cli.top_command:command", "Watch a running server's cache in the terminal."),
    "cache": (
        "radixlm.cli.cache_command:command",
        "List, check or shrink a folder of --disk-cache.",
    ),
    "sim": (
        "radixlm.cli.sim_command:command",
        "Try a trace with other settings, without the machine.",
    ),
    "bench": (
        "radixlm.bench.bench_commands:command",
        "Measure workloads, write random checkpoints.",
    ),
}


class LazyGroup(click.Group):
    """A group that knows its commands by name: importing them all would cost seconds."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            near = difflib.get_close_matches(cmd_name, SUBCOMMANDS, n=1)
            advice = f"did you mean {near[0]}?" if near else f"there are {', '.join(SUBCOMMANDS)}"
            ctx.fail(f"there is no command {cmd_name}; {advice}")
        place, _ = SUBCOMMANDS[cmd_name]
        command: click.Command = named(place)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, line) in SUBCOMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="radixlm", message="%(prog)s %(version)s")
def cli() -> None:
    """Language models whose shared prefixes are computed once.

    Start with `radixlm serve` or `radixlm chat`: without MODEL they take the embedded demo model.
    """


def main() -> None:
    """Run the command line. An error of ours is one line, without a traceback.

    Exits with 0, with 1 when something failed, with 2 when the command line was wrong.
    """
    try:
        _distrust_working_directory()
        cli(prog_name="radixlm")
    except ModelError as error:
        _complain(error.message)
        for line in error.commands:  # alone on its line, to be copied
            click.echo(f"  {_printable(line)}", err=True)
        sys.exit(1)
    except RadixLMError as error:
        _complain(str(error))
        sys.exit(2 if isinstance(error, ConfigError) else 1)


def _printable(text: str) -> str:
    """One line without control characters: names in a checkpoint are a stranger's."""
    line = " ".join(text.split())
    return "".join(each if each.isprintable() else ascii(each)[1:-1] for each in line)


def _distrust_working_directory() -> None:
    """Distrust the working directory: it may be a model's folder, which must not decide what is
    run. Raises ConfigError.
    """
    os.environ["PYTHONSAFEPATH"] = "1"  # for processes that libraries start
    if _NUMBA_SETTINGS.exists():
        raise ConfigError(
            f"numba would take settings from {_NUMBA_SETTINGS} in the working directory; "
            "start radixlm elsewhere, and set what you need as NUMBA_... in the environment"
        )


def _complain(message: str) -> None:
    click.secho(f"radixlm: {_printable(message)}", fg="red", err=True)
