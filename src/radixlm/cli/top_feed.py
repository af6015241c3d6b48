"""The feed of `radixlm top`: what it knows of a server's cache, and how it learns of it."""

from __future__ import annotations

import json
import ssl
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

import httpx
from httpx_sse import EventSource

from radixlm.core.bounded_answers import AnswerTooLongError, BoundedAnswers
from radixlm.core.errors import RadixLMError

Json = dict[str, Any]

SHOWN_NODES = 2_000
_MINUTE = 60
# Statistics come each second; a stream without any for longer is dead.
_SILENCE_SECONDS = 15.0
# By the status of a refusal: where it may pass, and what to do.
_LATER = (429, 500, 502, 503, 504)
_HINTS = {
    401: "give the key as --api-key KEY",
    403: "give that key as --api-key KEY",
    404: "is it the URL of a RadixLM server?",
}
MOST_BYTES = 32 * 2**20
_NO_PREFIXES: Json = {"nodes": 0, "looked_at": 0, "prefixes": []}


class WatchError(RadixLMError):
    """The server does not let its cache be watched."""


class NoRouteError(WatchError):
    """The server has no such route."""


class SilentError(WatchError):
    """No server answers, or it broke off, or it has no time: later it may."""


class Feed:
    """A server's events. url: without a / at its end. tls: whose certificates to trust. replica:
    whose tree, where there are several.
    """

    def __init__(
        self,
        url: str,
        api_key: str | None,
        tls: ssl.SSLContext | None = None,
        *,
        replica: str | None = None,
    ) -> None:
        self.url = url
        self._events = f"/cache/events?max_nodes={SHOWN_NODES}"
        if replica is not None:
            self._events += f"&replica={quote(replica, safe='')}"
        self._alone = False
        self._options: Json = {
            "headers": {"Authorization": f"Bearer {api_key}"} if api_key else {},
            "event_hooks": BoundedAnswers(MOST_BYTES).hooks,
            "verify": tls or True,
            "timeout": _SILENCE_SECONDS,
            "follow_redirects": True,
        }

    def events(self) -> Iterator[tuple[str, Json]]:
        """Each event's name and data, until the server ends them. Raises WatchError."""
        self._alone = False  # another server may be there now
        with self._answer(self._events) as answer:
            kind = answer.headers.get("content-type", "").partition(";")[0]
            if kind != "text/event-stream":
                raise WatchError(f"{self.url} answers with {kind}: it is no RadixLM server")
            for event in EventSource(answer).iter_sse():
                try:
                    data = json.loads(event.data)
                except (ValueError, RecursionError):
                    data = None
                if not isinstance(data, dict):
                    raise WatchError(
                        f"{self.url} tells {event.data[:40]!r}: it is no RadixLM server"
                    )
                yield event.event, data

    def advice(self) -> Json | None:
        """The server's advice; None where it gives none."""
        with suppress(WatchError):
            return self._json("/cache/advice")
        return None

    def replicas(self) -> list[Json]:
        """The replicas of a deployment, by name. A server alone has none, and is asked once a
        connection.
        """
        if self._alone:
            return []
        try:
            found: list[Json] = self._json("/router/replicas")["replicas"]
            return sorted(found, key=lambda each: str(each["replica"]))
        except NoRouteError:
            self._alone = True
            return []
        except (WatchError, KeyError, TypeError):
            return []

    def prefixes(self, limit: int) -> Json:
        """The prefixes of a deployment and where they live."""
        if self._alone:
            return _NO_PREFIXES
        try:
            return self._json(f"/router/prefixes?limit={limit}")
        except WatchError:
            return _NO_PREFIXES

    def _json(self, path: str) -> Json:
        """Raises WatchError."""
        with self._answer(path) as answer:
            try:
                found: Json = json.loads(answer.read())
            except (ValueError, RecursionError):
                raise WatchError(f"{self.url}{path} is no JSON") from None
            return found

    @contextmanager
    def _answer(self, path: str) -> Iterator[httpx.Response]:
        """An answer that begins. Raises WatchError."""
        try:
            with (
                httpx.Client(**self._options) as client,
                client.stream("GET", self.url + path) as answer,
            ):
                if answer.is_error:
                    answer.read()
                    raise self._refusal(answer)
                yield answer
        except AnswerTooLongError as error:
            raise WatchError(f"{self.url}: {error}: it is no RadixLM server") from None
        except httpx.HTTPError as error:
            raise self._silence(error) from None

    def _silence(self, error: httpx.HTTPError) -> WatchError:
        reason: BaseException | None = error
        while reason is not None and not isinstance(reason, OSError):
            reason = reason.__context__
        if isinstance(reason, ssl.SSLCertVerificationError):
            return WatchError(
                f"the certificate of {self.url} can not be trusted ({reason.verify_message}); "
                "name the one that can be as --cacert FILE, or trust any with --insecure"
            )
        if isinstance(reason, ssl.SSLError):
            return WatchError(
                f"no TLS with {self.url} ({reason.reason or reason}); "
                "is it a server without, at http:// ?"
            )
        why = getattr(reason, "strerror", None) or str(error).strip() or type(error).__name__
        return SilentError(
            f"no RadixLM server answers at {self.url} ({why}); is `radixlm serve` running?"
        )

    def _refusal(self, answer: httpx.Response) -> WatchError:
        try:
            message = str(answer.json()["error"]["message"])
        except (ValueError, KeyError, TypeError):
            message = answer.reason_phrase
        text = f"{self.url} answers {answer.status_code}: {message}"
        if answer.status_code in _LATER:
            return SilentError(text)
        hint = _HINTS.get(answer.status_code)
        kind = NoRouteError if answer.status_code == 404 else WatchError
        return kind(f"{text}; {hint}" if hint else text)


class Cache:
    """The cache as the events describe it.

    nodes: by id, as in the stream. samples: the statistics of the last minute. replicas, prefixes:
    what is known of each, where there are several. advice: None where the server gives none. lost:
    why nothing is heard from the server; "" while something is.
    """

    def __init__(self) -> None:
        self.nodes: dict[int, Json] = {}
        self.requests: dict[str, Json] = {}
        self.totals: Json = {}
        self.replicas: list[Json] = []
        self.prefixes: Json = _NO_PREFIXES
        self.advice: Json | None = None
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
            self.totals |= {key: data[key] for key in data.keys() & self.totals.keys()}

    def _progress(self, data: Mapping[str, Any]) -> None:
        for event in data["events"]:
            if event["type"] in ("retracted", "finished"):
                self.requests.pop(event["id"], None)
        self.requests.update({request["id"]: request for request in data["running"]})

    def sum(self, field: str) -> float:
        """A field's sum over the last minute's statistics."""
        return float(sum(sample[field] for sample in self.samples))

    @property
    def drafts(self) -> dict[str, tuple[int, int]]:
        """The tokens drafted in the last minute, and those that were right, by source."""
        sums: dict[str, tuple[int, int]] = {}
        for sample in self.samples:
            for source, its in sample.get("drafts", {}).items():
                drafted, right = sums.get(source, (0, 0))
                sums[source] = drafted + its["drafted_tokens"], right + its["accepted_tokens"]
        return sums

    @property
    def hit_rate(self) -> float | None:
        """The hit rate of the prompts of the last minute; None without any."""
        prompts = self.sum("prompt_tokens")
        return self.sum("cached_tokens") / prompts if prompts else None
