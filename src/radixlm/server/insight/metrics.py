"""/metrics, and the names that other servers give to the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate, chain
from typing import Final

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from radixlm.core.clock import Clock
from radixlm.core.misses import POOL_SCALES, MissReason
from radixlm.core.reports import Tally, exported
from radixlm.engine.engine_stats import EngineStats
from radixlm.server.config.server_config import MetricsNames

PREFIX: Final = "radixlm:"
_GAUGE, _COUNTER = GaugeMetricFamily, CounterMetricFamily
_LINE = re.compile(
    rf"^(?P<head># (?:HELP|TYPE) )?{PREFIX}(?P<name>\w+?)"
    r"(?P<part>(?:_total|_bucket|_count|_sum)?(?:_created)?)(?=[ {]).*\n",
    re.MULTILINE,
)
# vLLM's of the same meaning; what it has beyond these is counted otherwise here, or not at all.
VLLM: Final[Mapping[str, tuple[str, ...]]] = {
    "num_running_reqs": ("num_requests_running",),
    "num_queue_reqs": ("num_requests_waiting",),
    "token_usage": ("kv_cache_usage_perc",),
    "prompt_tokens": ("prompt_tokens", "prefix_cache_queries"),
    "cached_tokens": ("prompt_tokens_cached", "prefix_cache_hits"),
    "generation_tokens": ("generation_tokens",),
    "num_retractions": ("num_preemptions",),
    "time_to_first_token_seconds": ("time_to_first_token_seconds",),
    "inter_token_latency_seconds": ("inter_token_latency_seconds",),
    "queue_time_seconds": ("request_queue_time_seconds",),
    "e2e_request_latency_seconds": ("e2e_request_latency_seconds",),
}
_INTER_TOKEN_SECONDS = (0.002, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1, 2.5)
_QUEUE_SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
_BITS = 24  # of the largest number that histograms of numbers have a bucket for
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


def as_sglang(text: str) -> str:
    """All of them: the names are SGLang's already, but for their prefix."""
    return _LINE.sub(lambda line: _renamed(line, f"sglang:{line['name']}"), text)


def as_vllm(text: str) -> str:
    """The metrics that vLLM has, by its names."""
    lines: dict[str, list[str]] = {}
    for line in _LINE.finditer(text):
        for name in VLLM.get(line["name"], ()):
            lines.setdefault(name, []).append(_renamed(line, f"vllm:{name}"))
    return "".join(line for family in lines.values() for line in family)


def _renamed(line: re.Match[str], name: str) -> str:
    return f"{line['head'] or ''}{name}{line[0][line.end('name') - line.start() :]}"


class Metrics(Collector):
    """One server's metrics, in a registry of their own. The engine's are read from its snapshot
    when they are asked for: nothing is counted twice.

    time_to_first_token, queue_time, inter_token_latency, request_latency: in seconds, observed by
    the routes.
    more: what other parts count, in fields as the engine's. families: whole ones, with labels of
    their own.
    names: whose prefix they have.
    """

    def __init__(
        self,
        stats: Callable[[], EngineStats],
        model_name: str,
        clock: Clock,
        *,
        more: Sequence[object] = (),
        families: Callable[[], Iterable[Metric]] = tuple,
        names: MetricsNames = "radixlm",
    ) -> None:
        self.clock = clock
        self._stats, self._more, self._names = stats, more, names
        self._families = families
        self._model_name = model_name
        self._looked_at, self._tokens, self._throughput = clock.now(), 0, 0.0
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds", "From a request's arrival to its first output."
        )
        self.queue_time = self._histogram(
            "queue_time_seconds",
            "From a request's arrival until it was first admitted.",
            _QUEUE_SECONDS,
        )
        self.inter_token_latency = self._histogram(
            "inter_token_latency_seconds",
            "From one output of a request to the next, by the tokens in it.",
            _INTER_TOKEN_SECONDS,
        )
        self.request_latency = self._histogram(
            "e2e_request_latency_seconds", "From a request's arrival to its end."
        )

    def render(self) -> bytes:
        """The text exposition format."""
        own = generate_latest(self._registry).decode()
        match self._names:
            case "radixlm":
                text = own
            case "sglang":
                text = as_sglang(own)
            case "both":
                text = own + as_sglang(own)
            case "vllm":
                text = own + as_vllm(own)
        return text.encode()

    def collect(self) -> Iterator[Metric]:
        """Collect what the routes do not observe."""
        stats = self._stats()
        for metric, value in chain.from_iterable(map(exported, (stats, *self._more))):
            if metric.kind == "histogram":
                labels = ["model_name"]
                family = HistogramMetricFamily(PREFIX + metric.name, metric.text, labels=labels)
                family.add_metric([self._model_name], _buckets(value), value.total)
                yield family
            else:
                kind = _GAUGE if metric.kind == "gauge" else _COUNTER
                yield self._family(kind, metric.name, metric.text, {(): value})
        used, usage = stats.kv_in_use, stats.token_usage
        rate = self._rate(stats.output_tokens)
        for name, text, value in (
            ("num_used_tokens", "KV slots that running requests hold.", used),
            ("token_usage", "Share of KV slots in use.", usage),
            ("swa_token_usage", "Share of window slots in use.", stats.swa_token_usage),
            ("gen_throughput", "Tokens generated a second, since the last look.", rate),
        ):
            yield self._family(_GAUGE, name, text, {(): value})
        yield from self._families()
        expected = zip(POOL_SCALES, stats.expected_tokens, strict=True)
        yield self._family(
            _COUNTER,
            "expected_cached_tokens",
            "What cached_tokens would be with a pool of another size.",
            {(f"{scale:g}",): tokens for scale, tokens in expected},
            "pool_scale",
        )
        for place, what in enumerate(("draft", "accepted")):
            yield self._family(
                _COUNTER,
                f"spec_decode_num_{what}_tokens_per_source",
                "Tokens of drafts, and those that were right, by where the drafts are from.",
                {(source,): counts[place] for source, counts in stats.accepted_of.items()},
                "source",
            )
        yield self._family(
            _COUNTER,
            "cache_match_endings",
            "Why what was found in the cache ended where it did; last_token: all was found.",
            {(reason,): stats.endings.get(reason, 0) for reason in MissReason},
            "reason",
        )

    def _histogram(self, name: str, text: str, buckets: Sequence[float] = _SECONDS) -> Histogram:
        labels, registry = ["model_name"], self._registry
        family = Histogram(PREFIX + name, text, labels, registry=registry, buckets=buckets)
        return family.labels(self._model_name)

    def _family(
        self,
        kind: type[GaugeMetricFamily | CounterMetricFamily],
        name: str,
        text: str,
        values: Mapping[tuple[str, ...], float],
        *labels: str,
    ) -> Metric:
        """values: by those of `labels`."""
        family = kind(PREFIX + name, text, labels=["model_name", *labels])
        for own, value in values.items():
            family.add_metric([self._model_name, *own], value)
        return family

    def _rate(self, tokens: int) -> float:
        """Tokens a second since it was last asked, a second ago or more. tokens: in all."""
        now = self.clock.now()
        if now - self._looked_at >= 1:
            self._throughput = (tokens - self._tokens) / (now - self._looked_at)
            self._looked_at, self._tokens = now, tokens
        return self._throughput


class RequestTimes:
    """Observes one request's outputs as they come. Made when it arrives."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._begun = metrics.clock.now()
        self._last: float | None = None

    def take(self, tokens: int) -> None:
        """An output has come."""
        if not tokens:
            return
        now, last = self._metrics.clock.now(), self._last
        if last is None:
            self._metrics.time_to_first_token.observe(now - self._begun)
        else:
            self._metrics.inter_token_latency.observe((now - last) / tokens)
        self._last = now

    def end(self) -> None:
        """There will be no more."""
        self._metrics.request_latency.observe(self._metrics.clock.now() - self._begun)


def _buckets(counts: Tally) -> list[tuple[str, float]]:
    """(upper bound, how many are within it): 0, 1, 3, 7, ...; the last bucket holds all."""
    within = list(accumulate(counts.by_bits))
    bounds = [f"{2**bits - 1:.1f}" for bits in range(_BITS)]
    return [*zip(bounds, within, strict=False), ("+Inf", within[-1] if within else 0)]
