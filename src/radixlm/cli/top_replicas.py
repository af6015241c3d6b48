"""The replicas of a deployment, as `radixlm top` shows them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from radixlm.cli.top_feed import Json

# The router chooses none that has not reported for longer.
_SILENT_SECONDS = 5.0


def replica_table(replicas: Sequence[Json], total: int) -> Table:
    """A row for each, as `/router/replicas` describes it. total: of all that there are."""
    table = Table(box=None, header_style="dim", padding=(0, 1))
    table.add_column(f"Replicas: {total}", no_wrap=True)
    for name in ("Tokens", "Pool", "Nodes", "Hits", "Running", "Waiting", "To compute"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("Chosen, and why", no_wrap=True, overflow="ellipsis")
    for each in replicas:
        room = each["capacity_tokens"]
        table.add_row(
            Text(plain(str(each["replica"]))),
            f"{each['cached_tokens']:,}",
            f"{each['cached_tokens'] / room:.0%}" if room else "–",
            f"{each.get('nodes', 0):,}",
            f"{each['hit_rate']:.0%}",
            f"{each['running']:,}",
            f"{each['waiting']:,}",
            f"{each['queue_tokens']:,.0f}",
            _chosen(each),
        )
    return table


def _chosen(replica: Json) -> Text:
    """How often, by why, the most frequent first; or that nothing is heard of it."""
    if replica["silent_seconds"] > _SILENT_SECONDS:
        return Text(f"silent for {replica['silent_seconds']:,.0f} s", style="red")
    counts = sorted(replica["chosen"].items(), key=lambda each: -each[1])
    reasons = ", ".join(f"{plain(why).replace('_', ' ')} {count:,}" for why, count in counts)
    return Text.assemble(
        (f"{sum(replica['chosen'].values()):,}", "bold"), f": {reasons}" if reasons else ""
    )


def plain(text: str) -> str:
    """What a server says on one line, with nothing in it that a terminal would obey."""
    return "".join(
        each if each.isprintable() else "↵" if each == "\n" else f"‹U+{ord(each):04X}›"
        for each in text
    )
