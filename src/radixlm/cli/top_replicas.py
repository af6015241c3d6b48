"""The replicas of a deployment, as `radixlm top` shows them."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from radixlm.cli.top_feed import Json

_MOST_DEPTH = 4


def table_of(head: str, *numbers: str, wide: bool = False) -> Table:
    """A table whose first column is text, and the next ones numbers. wide: it fills the line."""
    table = Table(box=None, expand=wide, header_style="dim", padding=(0, 1))
    table.add_column(head, ratio=1 if wide else None, no_wrap=True)
    for name in numbers:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def replica_table(replicas: Sequence[Json], total: int) -> Table:
    """A row for each, as `/router/replicas` describes it. total: of all that there are."""
    heads = ("Tokens", "Pool", "Nodes", "Hits", "Running", "Waiting", "To compute")
    table = table_of(f"Replicas: {total}", *heads)
    table.add_column("Chosen, and why", no_wrap=True)
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


def prefix_table(found: Json, prefixes: Sequence[Json]) -> Table:
    """A table of which prefix lives where, as `/router/prefixes` describes it. prefixes: the first
    of them.
    """
    looked, nodes = found["looked_at"], found["nodes"]
    head = "Prefixes of all replicas"
    if looked < nodes:
        head += f": {looked:,} of {nodes:,} nodes"
    table = table_of(head, "Tokens", "Below", wide=True)
    table.add_column("Where, with what is below", ratio=1, no_wrap=True)
    depths: list[int] = []
    for each in prefixes:
        depths.append(0 if each["above"] is None else depths[each["above"]] + 1)
        text = Text("│ " * min(depths[-1], _MOST_DEPTH), style="dim", no_wrap=True)
        text.append(plain(each["text"]) or "no text")
        if each["cut"]:
            text.append("…")
        table.add_row(
            text,
            f"{each['tokens']:,}",
            f"{each['below_tokens'] - each['tokens']:,}",
            Text(plain(_where(each))),
        )
    return table


def _where(prefix: Json) -> str:
    """The replicas that hold it, the one with most of what is below it first, and those that are
    about to.
    """
    held = sorted(prefix["cached_tokens"].items(), key=lambda each: -each[1])
    places = [f"{name} {tokens:,}" for name, tokens in held]
    return ", ".join(places + [f"{name} computes it" for name in prefix["coming"]])


def _chosen(replica: Json) -> Text:
    """How often, by why, the most frequent first; or that nothing is heard of it."""
    if not replica["is_healthy"]:
        return Text(f"silent for {replica['silent_seconds']:,.0f} s", style="red")
    counts = sorted(replica["chosen"].items(), key=lambda each: -each[1])
    reasons = ", ".join(f"{plain(why).replace('_', ' ')} {count:,}" for why, count in counts)
    return Text.assemble(
        (f"{sum(replica['chosen'].values()):,}", "bold"), f": {reasons}" if reasons else ""
    )


def plain(text: str) -> str:
    """A server's text on one line, with nothing in it that a terminal would obey."""
    return "".join(
        each if each.isprintable() else "↵" if each == "\n" else f"‹U+{ord(each):04X}›"
        for each in text
    )
