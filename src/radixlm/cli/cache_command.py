"""`radixlm cache`: what a folder of `--disk-cache` holds; to check, shrink and repair it."""

from __future__ import annotations

import sys
from pathlib import Path

import click
from tqdm import tqdm

from radixlm.cli.start import later
from radixlm.core.errors import ConfigError

contents = later("radixlm.memory.store_care:contents")
verified = later("radixlm.memory.store_care:verify")
delete_identity = later("radixlm.memory.store_care:delete_identity")
repaired = later("radixlm.memory.store_care:repair")
shrink = later("radixlm.memory.store_care:shrink")

_DIR = click.Path(exists=True, file_okay=False, path_type=Path)
_folder = click.argument("folder", metavar="DIR", type=_DIR)


@click.group("cache")
def command() -> None:
    """List, check, shrink or repair DIR, a folder of `radixlm serve --disk-cache DIR`."""


@command.command("ls")
@_folder
def ls(folder: Path) -> None:
    """List what each model, with its settings, has in DIR."""
    for each in contents(folder):
        click.echo(
            f"{each.digest[:12]}  {each.disk_bytes / 1e9:8.3f} GB  "
            f"{each.blocks * each.block_tokens:>10,} tokens in {each.blocks:,} blocks "
            f"of {each.block_tokens}"
        )
        for name, value in each.facts.items():
            click.echo(f"{'':14}{name}: {value!r:.100}")


@command.command("verify")
@_folder
def verify(folder: Path) -> None:
    """Read every block, and compare its checksum. Exits with 1 where any is damaged."""
    sys.exit(_verify(folder, delete=False) > 0)


@command.command("prune")
@_folder
@click.option("--identity", metavar="X", help="Delete all of one model, named by `ls`.")
@click.option("--others", metavar="X", help="Delete all but this model's.")
@click.option("--damaged", is_flag=True, help="Delete damaged blocks.")
@click.option("--to-gb", type=click.FloatRange(min=0), help="Delete the oldest blocks.")
def prune(
    folder: Path, identity: str | None, others: str | None, damaged: bool, to_gb: float | None
) -> None:
    """Delete from DIR. All but --damaged need servers that use it to be stopped."""
    if sum((identity is not None, others is not None, damaged, to_gb is not None)) != 1:
        raise ConfigError("give one of --identity, --others, --damaged, --to-gb")
    if damaged:
        _verify(folder, delete=True)
    elif to_gb is not None:
        click.echo(f"{shrink(folder, int(to_gb * 1e9)):,} blocks are deleted.")
    else:
        freed = delete_identity(folder, identity or others or "", others=others is not None)
        click.echo(f"{freed / 1e9:.3f} GB are free.")


@command.command("repair")
@_folder
def repair(folder: Path) -> None:
    """Make an index from the blocks where DIR has none that is sound.

    The damaged one lies beside it under another name. Servers that use DIR have to be stopped; each
    start does the same, but for one with --disk-cache-strict.
    """
    click.echo(str(repaired(folder)) or "The index is sound, and so are its files' sizes.")


def _verify(folder: Path, *, delete: bool) -> int:
    """How many blocks are damaged; printed by identities."""
    with tqdm(unit=" blocks", disable=None) as bar:

        def step(done: int, total: int) -> None:
            bar.total = total
            bar.update(done - bar.n)

        found = verified(folder, step, delete=delete)
    for digest, (blocks, damaged) in found.items():
        what = "deleted" if delete else "damaged"
        click.echo(f"{digest[:12]}  {damaged:,} of {blocks:,} blocks {what}")
    return sum(damaged for _, damaged in found.values())
