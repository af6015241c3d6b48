"""`radixlm top`: the cache of a running server in the terminal."""

from __future__ import annotations

import ssl
import time
from urllib.parse import urlsplit

import click
from rich.console import Console
from rich.live import Live

from radixlm.cli.top_feed import Cache, Feed, Json, SilentError
from radixlm.cli.top_view import picture
from radixlm.core.errors import ConfigError

_AGAIN_SECONDS = 2.0
_REFRESH_PER_SECOND = 4


@click.command("top")
@click.argument("url", default="http://127.0.0.1:30000")
@click.option("--api-key", help="Key of the server, where it needs one.")
@click.option("--cacert", metavar="FILE", help="PEM file of the certificates to trust, for HTTPS.")
@click.option("--insecure", is_flag=True, help="Trust any certificate, as curl -k does.")
@click.option("--once", is_flag=True, help="Print one picture, and leave.")
def command(url: str, api_key: str | None, cacert: str | None, insecure: bool, once: bool) -> None:
    """Watch the cache of the server at URL: its tree, hit rate, pool, requests, advice.

    Ctrl-C leaves. Where the output is no terminal, it is as with --once, and every row is printed.
    """
    if api_key is not None and not (api_key.isascii() and api_key.isprintable()):
        raise ConfigError("--api-key holds characters that no key has")
    feed = Feed(_address(url), api_key, _trusting(cacert, insecure=insecure))
    console = Console()
    if once or not console.is_terminal:
        # A pipe has no lines that could run out: rich would take it for a terminal of 25.
        height = console.height if console.is_terminal else None
        console.print(picture(_heard(feed), feed.url, feed.advice(), height))
        return
    try:
        _watch(feed, console)
    except KeyboardInterrupt:
        return


def _trusting(cacert: str | None, *, insecure: bool) -> ssl.SSLContext:
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


def _heard(feed: Feed) -> Cache:
    """The cache after the first statistics. Raises WatchError where there are none."""
    cache = Cache()
    for name, data in feed.events():
        cache.apply(name, data)
        if name == "stats":
            return cache
    raise SilentError(f"{feed.url} ended before it sent anything")


def _watch(feed: Feed, console: Console) -> None:
    """Show until Ctrl-C; a connection that is lost is made again. Raises WatchError."""
    cache = Cache()
    advice: Json | None = None

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
                cache.lost = "the server ended"
            except SilentError as error:
                cache.lost = str(error)
            time.sleep(_AGAIN_SECONDS)
