"""`radixlm top`: the cache of a running server in the terminal."""

from __future__ import annotations

import time
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.live import Live

from radixlm.cli_top_feed import Cache, Feed, WatchError
from radixlm.cli_top_view import picture
from radixlm.core.errors import ConfigError

_AGAIN_SECONDS = 2.0
_REFRESH_PER_SECOND = 4


@click.command("top")
@click.argument("url", default="http://127.0.0.1:30000")
@click.option("--api-key", help="Key of the server, where it needs one.")
@click.option("--once", is_flag=True, help="Print one picture, and leave.")
def command(url: str, api_key: str | None, once: bool) -> None:
    """Watch the cache of the server at URL: its tree, hit rate, pool, requests, advice.

    Ctrl-C leaves.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise ConfigError(f"URL is like http://127.0.0.1:30000, got {url!r:.80}")
    feed = Feed(url.rstrip("/"), api_key)
    console = Console()
    if once:
        console.print(picture(_heard(feed), feed.url, feed.advice(), console.height))
        return
    try:
        _watch(feed, console)
    except KeyboardInterrupt:
        return


def _heard(feed: Feed) -> Cache:
    """The cache after the first statistics. Raises WatchError where nothing answers."""
    cache = Cache()
    try:
        for name, data in feed.events():
            cache.apply(name, data)
            if name == "stats":
                break
    except OSError as error:
        why = f"nothing answers at {feed.url} ({error}); give the URL of a running `radixlm serve`"
        raise WatchError(why) from None
    return cache


def _watch(feed: Feed, console: Console) -> None:
    """Show until Ctrl-C; a connection that is lost is made again."""
    cache, advice = Cache(), feed.advice()

    def shown() -> object:
        return picture(cache, feed.url, advice, console.height)

    with Live(
        get_renderable=shown,  # type: ignore[arg-type]
        console=console,
        screen=True,
        refresh_per_second=_REFRESH_PER_SECOND,
    ):
        while True:
            try:
                for name, data in feed.events():
                    cache.apply(name, data)
                    if name == "stats":
                        advice = feed.advice()
            except OSError:
                pass
            cache.lost = True
            time.sleep(_AGAIN_SECONDS)
