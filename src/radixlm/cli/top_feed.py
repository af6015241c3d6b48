"""What `radixlm top` knows of a server's cache, and how it learns of it."""

from __future__ import annotations

import json
import ssl
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from radixlm.core.errors import RadixLMError

Json = dict[str, Any]

SHOWN_NODES = 2_000
_MINUTE = 60
# The stream tells of statistics each second; without a word for longer it is dead.
_SILENCE_SECONDS = 15.0
_MOST_BYTES = 32 * 2**20
_TOTALS = ("capacity", "free", "private", "locked", "evictable", "pinned", "running", "waiting")


class WatchError(RadixLMError):
    """The server does not let its cache be watched."""


class SilentError(WatchError):
    """No server answers, or it broke off, or it has no time: later it may."""


class Feed:
    """A server's stream of events. url: without a / behind it. tls: whose certificates to trust."""

    def __init__(self, url: str, api_key: str | None, tls: ssl.SSLContext | None = None) -> None:
        self.url = url
        self._tls = tls
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}

    def events(self) -> Iterator[tuple[str, Json]]:
        """Each event's name and data, until the server ends them. Raises WatchError."""
        with self._open(f"/cache/events?max_nodes={SHOWN_NODES}") as answer:
            kind = answer.headers.get_content_type()
            if kind != "text/event-stream":
                raise WatchError(f"{self.url} answers with {kind}: it is no RadixLM server")
            name = ""
            while line := answer.readline(_MOST_BYTES):
                field, _, value = line.decode(errors="replace").strip().partition(": ")
                if field == "event":
                    name = value
                elif field == "data":
                    yield name, self._data(value)

    def _data(self, value: str) -> Json:
        try:
            told = json.loads(value)
        except (ValueError, RecursionError):
            told = None
        if not isinstance(told, dict):
            raise WatchError(f"{self.url} tells {value[:40]!r}: it is no RadixLM server")
        return told

    def advice(self) -> Json | None:
        """What the server advises; None where it gives no advice."""
        try:
            with self._open("/cache/advice") as answer:
                told: Json = json.loads(answer.read(_MOST_BYTES))
                return told
        except (WatchError, ValueError):
            return None

    @contextmanager
    def _open(self, path: str) -> Iterator[Any]:
        request = Request(self.url + path, headers=self._headers)  # noqa: S310
        try:
            with urlopen(  # noqa: S310
                request, timeout=_SILENCE_SECONDS, context=self._tls
            ) as answer:
                yield answer
        except HTTPError as error:
            with error:  # it holds the connection
                raise self._refusal(error) from None
        except (OSError, HTTPException) as error:
            reason = error.reason if isinstance(error, URLError) else error
            if isinstance(reason, ssl.SSLCertVerificationError):
                raise WatchError(
                    f"the certificate of {self.url} can not be trusted ({reason.verify_message}); "
                    "name the one that can be as --cacert FILE, or trust any with --insecure"
                ) from None
            if isinstance(reason, ssl.SSLError):
                raise WatchError(
                    f"no TLS with {self.url} ({reason.reason or reason}); "
                    "is it a server without, at http:// ?"
                ) from None
            why = getattr(reason, "strerror", None) or str(reason).strip() or type(error).__name__
            raise SilentError(
                f"no RadixLM server answers at {self.url} ({why}); is `radixlm serve` running?"
            ) from None

    def _refusal(self, error: HTTPError) -> WatchError:
        told = f"{self.url} answers {error.code}: {_message(error)}"
        match error.code:
            case 401:
                return WatchError(f"{told}; give the key as --api-key KEY")
            case 403:
                return WatchError(f"{told}; give that key as --api-key KEY")
            case 404:
                return WatchError(f"{told}; is it the URL of a RadixLM server?")
            case 429 | 500 | 502 | 503 | 504:
                return SilentError(told)
            case _:
                return WatchError(told)


def _message(error: HTTPError) -> str:
    try:
        return str(json.loads(error.read(_MOST_BYTES))["error"]["message"])
    except (ValueError, KeyError, TypeError, OSError, HTTPException):
        return error.reason


class Cache:
    """The cache as the events told of it.

    nodes: by id, as in the stream. samples: the statistics of the last minute. lost: why nothing
    is heard from the server; "" while something is.
    """

    def __init__(self) -> None:
        self.nodes: dict[int, Json] = {}
        self.requests: dict[str, Json] = {}
        self.totals: Json = {}
        self.samples: deque[Json] = deque(maxlen=_MINUTE)
        self.lost = ""

    def apply(self, name: str, data: Mapping[str, Any]) -> None:
        """Take one event in; names that are not known change nothing."""
        self.lost = ""
        if name == "snapshot":
            self.nodes = {node["id"]: node for node in data["nodes"]}
            self.requests = {request["id"]: request for request in data["requests"]}
            self.totals = dict(data["totals"])
        elif name == "tree":
            for gone in data["removed"]:
                self.nodes.pop(gone, None)
            self.nodes.update({node["id"]: node for node in data["nodes"]})
            self.totals = dict(data["totals"])
        elif name == "requests":
            self._progress(data)
        elif name == "stats":
            self.samples.append(dict(data))
            self.totals.update({key: data[key] for key in _TOTALS})

    def _progress(self, data: Mapping[str, Any]) -> None:
        for event in data["events"]:
            if event["type"] in ("retracted", "finished"):
                self.requests.pop(event["id"], None)
        self.requests.update({request["id"]: request for request in data["running"]})

    def sum(self, field: str) -> float:
        """A field's sum over the last minute's statistics."""
        return float(sum(sample[field] for sample in self.samples))

    @property
    def hit_rate(self) -> float | None:
        """Of the prompts of the last minute; None without any."""
        prompts = self.sum("prompt_tokens")
        return self.sum("cached_tokens") / prompts if prompts else None
