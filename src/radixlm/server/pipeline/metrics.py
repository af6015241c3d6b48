"""/metrics, and the names that other servers give to the same."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
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
from radixlm.core.reports import Tally
from radixlm.engine.engine_stats import EngineStats
from radixlm.server.config.server_config import MetricsNames

PREFIX: Final = "radixlm:"
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
    """Those that it has."""
    lines: dict[str, list[str]] = {}
    for line, name in _with_vllm_names(text):
        lines.setdefault(name, []).append(_renamed(line, f"vllm:{name}"))
    return "".join(line for family in lines.values() for line in family)


def _with_vllm_names(text: str) -> Iterator[tuple[re.Match[str], str]]:
    for line in _LINE.finditer(text):
        for name in VLLM.get(line["name"], ()):
            yield line, name


def _renamed(line: re.Match[str], name: str) -> str:
    return f"{line['head'] or ''}{name}{line[0][line.end('name') - line.start() :]}"


# The name of a counter, what it counts, and how many.
Counted = tuple[str, str, float]


class Metrics:
    """One server's metrics, in a registry of their own.

    time_to_first_token, queue_time, inter_token_latency, request_latency: in seconds, observed by
    the routes.
    names: whose prefix they have.
    more: what other parts count.
    """

    def __init__(
        self,
        stats: Callable[[], EngineStats],
        model_name: str,
        clock: Clock,
        *,
        more: Callable[[], Iterable[Counted]] = tuple,
        names: MetricsNames = "radixlm",
    ) -> None:
        self._names = names
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_EngineCollector(stats, more, model_name, clock))
        self.time_to_first_token = self._histogram(
            "time_to_first_token_seconds",
            "From a request's arrival to its first output.",
            model_name,
        )
        self.queue_time = self._histogram(
            "queue_time_seconds",
            "From a request's arrival until it was first admitted.",
            model_name,
            _QUEUE_SECONDS,
        )
        self.inter_token_latency = self._histogram(
            "inter_token_latency_seconds",
            "From one output of a request to the next, by the tokens in it.",
            model_name,
            _INTER_TOKEN_SECONDS,
        )
        self.request_latency = self._histogram(
            "e2e_request_latency_seconds", "From a request's arrival to its end.", model_name
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

    def _histogram(
        self, name: str, text: str, model_name: str, buckets: Sequence[float] = _SECONDS
    ) -> Histogram:
        family = Histogram(
            PREFIX + name, text, ["model_name"], registry=self._registry, buckets=buckets
        )
        return family.labels(model_name)


class RequestTimes:
    """Observes one request's outputs as they come. Made when it arrives."""

    def __init__(self, metrics: Metrics, clock: Clock) -> None:
        self._metrics = metrics
        self._clock = clock
        self._begun = clock.now()
        self._last: float | None = None

    def take(self, tokens: int) -> None:
        """An output has come."""
        if not tokens:
            return
        now, last = self._clock.now(), self._last
        if last is None:
            self._metrics.time_to_first_token.observe(now - self._begun)
        else:
            self._metrics.inter_token_latency.observe((now - last) / tokens)
        self._last = now

    def end(self) -> None:
        """There will be no more."""
        self._metrics.request_latency.observe(self._clock.now() - self._begun)


class _Throughput:
    """Tokens a second since it was last asked, a second ago or more."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._at, self._tokens, self._rate = clock.now(), 0, 0.0

    def of(self, tokens: int) -> float:
        """tokens: in all."""
        now = self._clock.now()
        if now - self._at >= 1:
            self._rate = (tokens - self._tokens) / (now - self._at)
            self._at, self._tokens = now, tokens
        return self._rate


class _EngineCollector(Collector):
    """Reads the engine's snapshot when it is asked: nothing is counted twice."""

    def __init__(
        self,
        stats: Callable[[], EngineStats],
        more: Callable[[], Iterable[Counted]],
        model_name: str,
        clock: Clock,
    ) -> None:
        self._stats = stats
        self._more = more
        self._model_name = model_name
        self._throughput = _Throughput(clock)

    def collect(self) -> Iterator[Metric]:
        stats = self._stats()
        for metric, value in stats.exported():
            name, text = metric.name, metric.text
            if metric.kind == "gauge":
                yield self._gauge(name, text, value)
            elif metric.kind == "counter":
                yield _counter(name, text, value, self._model_name)
            else:
                family = HistogramMetricFamily(PREFIX + name, text, labels=["model_name"])
                family.add_metric([self._model_name], _buckets(value), value.total)
                yield family
        yield self._gauge("cache_hit_rate", "Cached prompt tokens / prompt tokens.", stats.hit_rate)
        rate = self._throughput.of(stats.output_tokens)
        yield self._gauge(
            "num_used_tokens", "KV slots that running requests hold.", stats.kv_in_use
        )
        yield self._gauge("token_usage", "Share of KV slots in use.", stats.token_usage)
        yield self._gauge("gen_throughput", "Tokens generated a second, since the last look.", rate)
        for name, text, total in self._more():
            yield _counter(name, text, total, self._model_name)
        yield from self._of_the_tree(stats)

    def _of_the_tree(self, stats: EngineStats) -> Iterator[Metric]:
        expected = CounterMetricFamily(
            PREFIX + "expected_cached_tokens",
            "What cached_tokens would be with a pool of another size.",
            labels=["model_name", "pool_scale"],
        )
        for scale, tokens in zip(POOL_SCALES, stats.expected_tokens, strict=True):
            expected.add_metric([self._model_name, f"{scale:g}"], tokens)
        yield expected
        endings = CounterMetricFamily(
            PREFIX + "cache_match_endings",
            "Why what was found in the cache ended where it did; last_token: all was found.",
            labels=["model_name", "reason"],
        )
        for reason in MissReason:
            endings.add_metric([self._model_name, reason], stats.endings.get(reason, 0))
        yield endings

    def _gauge(self, name: str, text: str, value: float) -> GaugeMetricFamily:
        gauge = GaugeMetricFamily(PREFIX + name, text, labels=["model_name"])
        gauge.add_metric([self._model_name], value)
        return gauge


def _counter(name: str, text: str, total: float, model_name: str) -> CounterMetricFamily:
    counter = CounterMetricFamily(PREFIX + name, text, labels=["model_name"])
    counter.add_metric([model_name], total)
    return counter


def _buckets(counts: Tally) -> list[tuple[str, float]]:
    """(upper bound, how many are within it): 0, 1, 3, 7, ...; the last bucket holds all."""
    within = list(accumulate(counts.by_bits))
    bounds = [f"{2**bits - 1:.1f}" for bits in range(_BITS)]
    return [*zip(bounds, within, strict=False), ("+Inf", within[-1] if within else 0)]
