"""`radixlm top`: the cache of a running server in the terminal: numbers, the heaviest subtrees,
requests, advice.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import click
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from radixlm.cli.top_feed import Cache, Feed, Json, SilentError
from radixlm.cli.top_replicas import plain, prefix_table, replica_table, table_of
from radixlm.core.errors import ConfigError
from radixlm.server.config.server_config import DEFAULT_PORT

_AGAIN_SECONDS = 2.0
_LEAST_SECONDS = 0.25  # from one picture to the next
_PLACES = ("host", "disk")
_STATES = {
    "running": "green",
    "cached": "blue",
    "pinned": "magenta",
    "host": "cyan",
    "disk": "yellow",
}
_GHOST = "bright_black"
_BAR = 14
_REQUESTS = 6
_REPLICAS = 8
_PREFIXES, _MOST_PREFIXES = 6, 200
_LINES_FOR_A_PREFIX = 8
_ADVICE = 4
_LEAST_ROWS = 3
_TRYING = "Trying again; Ctrl-C leaves."
_MOST_DEPTH = 8
_TEXT = 200
# Lines around the rows of the tree: numbers, frames, heads.
_AROUND = 11
_panel = partial(Panel, title_align="left", border_style="dim")


@click.command("top")
@click.argument("url", required=False)
@click.option("--port", type=click.IntRange(1, 65535), help="Of a server here, in place of URL.")
@click.option("--api-key", help="Key of the server, where it needs one.")
@click.option("--cacert", metavar="FILE", help="PEM file of the certificates to trust, for HTTPS.")
@click.option("--insecure", is_flag=True, help="Trust any certificate, as curl -k does.")
@click.option("--replica", metavar="NAME", help="Show this one's tree; without, the first one's.")
@click.option("--once", is_flag=True, help="Print one picture, and leave.")
def command(
    url: str | None,
    port: int | None,
    api_key: str | None,
    replica: str | None,
    once: bool,
    **tls: Any,
) -> None:
    """Watch the cache of the server at URL (http://127.0.0.1:30000): its tree, hit rate, pool,
    requests, advice.

    Of several replicas, each has a row; numbers and prefixes are of all, the tree and
    requests of one.

    Ctrl-C leaves. Where the output is no terminal, it is as with --once, and every row is printed.
    """
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise ConfigError("--api-key holds characters that no key has")
    if url is not None and port is not None:
        raise ConfigError(f"--port {port} beside URL {url!r:.80}: give one of them")
    address = _address(url or f"http://127.0.0.1:{port or DEFAULT_PORT}")
    feed = Feed(address, api_key, _trusting(**tls), replica=replica)
    console = Console()
    if once or not console.is_terminal:
        # A pipe has no lines that could run out: rich would take it for a terminal of 25.
        height = console.height if console.is_terminal else None
        heard = _heard(feed, _MOST_PREFIXES if height is None else _PREFIXES)
        console.print(picture(heard, feed.url, height))
        return
    try:
        _watch(feed, console)
    except KeyboardInterrupt:
        return


def _trusting(cacert: str | None, insecure: bool) -> ssl.SSLContext:
    """Raises ConfigError for a file that can not be used."""
    try:
        context = ssl.create_default_context(cafile=cacert)
    except OSError as error:  # an SSLError, too
        raise ConfigError(f"--cacert {cacert!r} can not be read as PEM: {error}") from None
    if insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def _address(url: str) -> str:
    """The server's own, where it is given as OpenAI's clients take it. Raises ConfigError."""
    address = url.rstrip("/").removesuffix("/v1").rstrip("/")
    try:
        parts = urlsplit(address)
        host, _ = (parts.hostname or "").encode("idna"), parts.port
    except ValueError:  # no number, no address in brackets, no name
        host = b""
    plain = address.isascii() and address.isprintable() and not set(address) & set(" ?#@")
    if not (plain and host and parts.scheme in ("http", "https")):
        raise ConfigError(f"URL is like http://127.0.0.1:30000, got {url!r:.80}")
    return address


def _heard(feed: Feed, most: int) -> Cache:
    """The cache after the first statistics. most: rows of prefixes. Raises WatchError where there
    are none.
    """
    cache = Cache()
    for name, data in feed.events():
        cache.apply(name, data)
        if name == "stats":
            _ask(cache, feed, most)
            return cache
    raise SilentError(f"{feed.url} ended before it sent anything")


def _ask(cache: Cache, feed: Feed, most: int) -> None:
    """Ask for what comes by no event."""
    cache.advice, cache.replicas = feed.advice(), feed.replicas()
    cache.prefixes = feed.prefixes(most)


def _watch(feed: Feed, console: Console) -> None:
    """Show until Ctrl-C; a connection that is lost is made again. Raises WatchError."""
    cache, due = Cache(), 0.0
    first = picture(cache, feed.url, console.height)
    with Live(first, console=console, screen=True, auto_refresh=False) as live:

        def show() -> float:
            live.update(picture(cache, feed.url, console.height), refresh=True)
            return time.monotonic() + _LEAST_SECONDS

        while True:
            try:
                for name, data in feed.events():
                    cache.apply(name, data)
                    if name == "stats":
                        _ask(cache, feed, _PREFIXES)
                    if time.monotonic() >= due:
                        due = show()
                cache.lost = "the server ended"
            except SilentError as error:
                cache.lost = str(error)
            due = show()
            time.sleep(_AGAIN_SECONDS)


class TreeRow(NamedTuple):
    """A node in the picture. below: its tokens and those below it. nodes: these nodes."""

    node: Json
    depth: int
    below: int
    nodes: int


def picture(cache: Cache, url: str, height: int | None) -> RenderableType:
    """All of it, in about `height` lines; None: every row that there is."""
    if not cache.totals:
        return _nothing(cache, url)

    def most(rows: int) -> int | None:
        return None if height is None else rows

    parts: list[RenderableType] = [_numbers(cache, url)]
    lines = _advice(cache.advice, most(_ADVICE))
    requests = list(cache.requests.values())[: most(_REQUESTS)]
    if replicas := cache.replicas[: most(_REPLICAS)]:
        parts.append(replica_table(replicas, len(cache.replicas)))
    if prefixes := cache.prefixes["prefixes"][: height and height // _LINES_FOR_A_PREFIX]:
        parts.append(prefix_table(cache.prefixes, prefixes))
    rows = len(cache.nodes)
    if height is not None:
        around = _AROUND + (len(requests) + 3 if requests else 0) + (2 * len(lines) + 2)
        around += sum(len(each) + 1 for each in (replicas, prefixes) if each)
        rows = max(height - around, _LEAST_ROWS)
    parts.append(_tree(cache, rows))
    if requests:
        parts.append(_running(requests, len(cache.requests)))
    if lines:
        parts.append(_panel(Group(*lines), title="Advice"))
    return Group(*parts)


def _nothing(cache: Cache, url: str) -> RenderableType:
    if not cache.lost:
        return Text(f"{url}: waiting for the first word")
    return Text.assemble((plain(cache.lost), "red"), "\n", (_TRYING, "dim"))


def branches(nodes: dict[int, Json], limit: int) -> list[TreeRow]:
    """The nodes with the most tokens in them and below, parents first, at most `limit`."""
    below = {name: node["tokens"] + node["hidden_tokens"] for name, node in nodes.items()}
    sizes = {name: 1 + node["hidden"] for name, node in nodes.items()}
    order = list(_parents_first(nodes))
    for node in reversed(order):
        if node["parent_id"] in nodes:
            below[node["parent_id"]] += below[node["id"]]
            sizes[node["parent_id"]] += sizes[node["id"]]
    # A parent has at least what its child has, and comes first: so none is there without it.
    heavy = sorted((node for node in order if node["tokens"]), key=lambda n: -below[n["id"]])
    chosen = {node["id"] for node in heavy[:limit]}
    depths: dict[int, int] = {}
    found = []
    for node in order:
        if node["id"] in chosen:
            depth = depths[node["id"]] = depths.get(node["parent_id"], -1) + 1
            found.append(TreeRow(node, depth, below[node["id"]], sizes[node["id"]]))
    return found


def _parents_first(nodes: dict[int, Json]) -> Iterator[Json]:
    """Depth first, children in the order of their ids."""
    children: dict[int | None, list[Json]] = {}
    for node in sorted(nodes.values(), key=lambda node: -node["id"]):
        parent = node["parent_id"] if node["parent_id"] in nodes else None
        children.setdefault(parent, []).append(node)
    waiting = children.get(None, [])
    while waiting:
        node = waiting.pop()
        yield node
        waiting.extend(children.get(node["id"], []))


def _numbers(cache: Cache, url: str) -> RenderableType:
    totals = cache.totals
    used = totals["capacity"] - totals["free"]
    share = used / totals["capacity"] if totals["capacity"] else 0.0
    full = round(_BAR * share)
    shares = (("█" * full, "not bold blue"), ("░" * (_BAR - full), "not bold dim"))
    bar = Text.assemble(*shares, f" {share:.0%}")
    rate = cache.samples[-1]["generated_tokens_per_s"] if cache.samples else 0.0
    evicted = f"{cache.sum('evicted_tokens'):,.0f} evicted"
    columns: list[tuple[str, str | Text, str]] = [
        ("Hit rate", "–" if cache.hit_rate is None else f"{cache.hit_rate:.0%}", "last minute"),
        ("Pool", bar, f"{used:,} of {totals['capacity']:,} tokens"),
        *(column for name in _PLACES if (column := _place(totals, name))),
        ("Nodes", f"{totals['nodes']:,}", f"{totals['ghosts']:,} ghosts"),
        ("Requests", f"{totals['running']} running", f"{totals['waiting']} waiting"),
        ("Tokens", f"{rate:,.0f} a second", evicted),
    ]
    if drafts := cache.drafts:
        said = ", ".join(f"{each} {right:,} of {of:,}" for each, (of, right) in drafts.items())
        saved = sum(right for _, right in drafts.values())
        columns.append(("Steps saved", f"{saved:,}", plain(said)))
    grid = Table.grid(padding=(0, 2, 0, 0))
    for style, row in zip(("dim", "bold", "dim"), zip(*columns, strict=True), strict=True):
        grid.add_row(*row, style=style)
    state = ("live", "green") if not cache.lost else (" connection lost ", "white on red")
    title = Text.assemble("RadixLM ", (url, "dim"), "  ", state)
    why = Text(plain(cache.lost), style="red") if cache.lost else None
    return _panel(grid, title=title, subtitle=why, subtitle_align="left")


def _place(totals: Json, name: str) -> tuple[str, str, str] | None:
    """A column of the numbers; None where there is no such place."""
    room, tokens = totals[f"{name}_capacity"], totals[name]
    share = tokens / room if room else 0.0
    return (name.title(), f"{share:.0%}", f"{tokens:,} of {room:,} tokens") if room else None


def _tree(cache: Cache, rows: int) -> RenderableType:
    places = [name for name in _PLACES if cache.totals[f"{name}_capacity"]]
    heads = ("Tokens", *map(str.title, places), "Below", "Nodes", "Hits", "Locks", "State")
    table = table_of("Tree", *heads, wide=True)
    shown = branches(cache.nodes, rows)
    for node, depth, below, nodes in shown:
        style = _STATES.get(node["state"], _GHOST)
        text = Text("│ " * min(depth, _MOST_DEPTH), style="dim", no_wrap=True)
        text.append("▌", style=style)
        text.append(plain(node.get("text") or "")[:_TEXT] or f"node {node['id']}")
        stored = (node[f"on_{name}"] for name in places)
        others = (below - node["tokens"], nodes, node["hits"], node["lock_ref"])
        numbers = (node["tokens"], *stored, *others)
        table.add_row(
            text, *(f"{number:,}" for number in numbers), Text(node["state"], style=style)
        )
    if not shown:
        table.add_row(Text("The cache is empty.", style="dim"))
    return table


def _running(requests: list[Json], total: int) -> RenderableType:
    table = table_of(f"Running: {total}", "Prompt", "Cached", "Answer")
    for request in requests:
        sizes = (request["prompt_tokens"], request["cached_tokens"], request["output_tokens"])
        table.add_row(Text(plain(request["id"])), *(f"{size:,}" for size in sizes))
    return table


def _advice(advice: Json | None, most: int | None) -> list[RenderableType]:
    if advice is None:
        return []
    texts = [plain(entry["text"]) for entry in advice["advice"][:most]]
    if sizes := advice["capacity"]:
        rates = ", ".join(f"{size['scale']:g}x {size['hit_rate']:.0%}" for size in sizes)
        texts.append(f"hit rate by size of the pool: {rates}")
    return [Text(f"• {text}") for text in texts]
