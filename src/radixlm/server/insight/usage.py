"""How many tokens a request took, how many of them were cached, and why no more."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import NotRequired

from typing_extensions import TypedDict

from radixlm.core.misses import MissReason, MissReport
from radixlm.core.request import Breakpoint, RequestOutput
from radixlm.observe.causes import Cause, Finding

# Of drafts, the client's own.
PREDICTION = "prediction"


class PromptTokensDetails(TypedDict):
    """cached_tokens: read from the cache. cache_write_tokens: computed, and in it from now on."""

    cached_tokens: int
    cache_write_tokens: int
    text_tokens: int
    audio_tokens: int
    image_tokens: int


class DraftedTokens(TypedDict):
    """accepted_tokens: those that were right; each saved a step."""

    drafted_tokens: int
    accepted_tokens: int


class CompletionTokensDetails(TypedDict):
    """drafts: by source, where there were some."""

    reasoning_tokens: int
    text_tokens: int
    audio_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int
    drafts: NotRequired[dict[str, DraftedTokens]]


class TokenUsage(TypedDict):
    """A prompt counts once however many choices it has."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class UsageMeter:
    """Adds up a request's outputs as they come.

    A prompt counts once however many choices it has; what counts as cached is what its first
    choice found, since the others share that one's own work.
    """

    def __init__(self, n: int, *, caches: bool = True) -> None:
        """n: choices for each prompt. caches: whether what is computed is cached.

        misses: by prompt, why no more of it was cached.
        """
        self._n = n
        self._caches = caches
        self._prompts: dict[int, tuple[int, int]] = {}
        self._drafts: dict[int, Mapping[str, tuple[int, int]]] = {}
        self._kept: tuple[Breakpoint, ...] = ()
        self.misses: dict[int, MissReport] = {}
        self.completion_tokens = 0

    def add(self, choice: int, output: RequestOutput) -> None:
        """Count one output of a choice."""
        self.completion_tokens += len(output.token_ids)
        self._drafts[choice] = output.drafts
        if choice % self._n == 0:
            if output.prompt_tokens:  # an end that came from elsewhere knows of none
                self._prompts[choice // self._n] = (output.prompt_tokens, output.cached_tokens)
            if output.miss is not None:
                self.misses[choice // self._n] = output.miss
        if not choice:
            self._kept += output.kept

    def drafts(self, prompt: int | None = None) -> dict[str, DraftedTokens]:
        """The drafts for the answers to a prompt, or to all."""
        of = [d for c, d in self._drafts.items() if prompt is None or c // self._n == prompt]
        return as_drafts(of)

    @property
    def prompt_tokens(self) -> int:
        return sum(tokens for tokens, _ in self._prompts.values())

    @property
    def cached_tokens(self) -> int:
        """How many of the prompts' tokens were cached."""
        return sum(tokens for _, tokens in self._prompts.values())

    def counts(self) -> tuple[int, int, int, Sequence[str]]:
        """The prompts' tokens, those of them that were cached, and the answers'; where there are
        several replicas, for each prompt where it went, and why.
        """
        misses = self.misses.values()
        routed = [f"{miss.replica}: {miss.routed_because}" for miss in misses if miss.replica]
        return self.prompt_tokens, self.cached_tokens, self.completion_tokens, routed

    def details(self) -> CachedDetails:
        """The cached tokens by where they were, in SGLang's words."""
        host = sum(miss.from_host or 0 for miss in self.misses.values())
        disk = [miss.from_disk for miss in self.misses.values() if miss.from_disk is not None]
        found: CachedDetails = {"device": self.cached_tokens - host - sum(disk), "host": host}
        if disk:
            found["storage"] = sum(disk)
        return found

    def newly_kept(self) -> dict[float, int]:
        """How many of the first prompt's tokens were computed and are kept now, by seconds."""
        _, end = self._prompts.get(0, (0, 0))
        written: dict[float, int] = {}
        for tokens, ttl in sorted(self._kept):
            if tokens > end:
                written[ttl] = written.get(ttl, 0) + tokens - end
                end = tokens
        return written

    def as_json(self, reasoning_tokens: int = 0) -> TokenUsage:
        """OpenAI's `usage`. reasoning_tokens: how many of the answers' tokens were thoughts.

        OpenAI gives the numbers of all kinds of tokens, those too that nothing here makes.
        """
        prompt, cached = self.prompt_tokens, self.cached_tokens
        drafts = self.drafts()
        of_prediction = drafts.get(PREDICTION, DraftedTokens(drafted_tokens=0, accepted_tokens=0))
        accepted = of_prediction["accepted_tokens"]
        usage: TokenUsage = {
            "prompt_tokens": prompt,
            "completion_tokens": self.completion_tokens,
            "total_tokens": prompt + self.completion_tokens,
            "prompt_tokens_details": {
                "cached_tokens": cached,
                "cache_write_tokens": prompt - cached if self._caches else 0,
                "text_tokens": prompt,
                "audio_tokens": 0,
                "image_tokens": 0,
            },
            "completion_tokens_details": {
                "reasoning_tokens": reasoning_tokens,
                "text_tokens": self.completion_tokens,
                "audio_tokens": 0,
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": of_prediction["drafted_tokens"] - accepted,
            },
        }
        if drafts:
            usage["completion_tokens_details"]["drafts"] = drafts
        return usage


def as_drafts(counts: Iterable[Mapping[str, tuple[int, int]]]) -> dict[str, DraftedTokens]:
    """The sums of what was drafted, by source."""
    sums: dict[str, DraftedTokens] = {}
    for source, (drafted, accepted) in chain.from_iterable(each.items() for each in counts):
        its = sums.setdefault(source, {"drafted_tokens": 0, "accepted_tokens": 0})
        its["drafted_tokens"] += drafted
        its["accepted_tokens"] += accepted
    return sums


class CachedTokens(TypedDict):
    """Cached tokens by where they were when the request came: device is the KV pool; host, with
    --host-kv-tokens, and disk, with a --disk-cache, what was read from there for it.
    """

    device: int
    host: NotRequired[int]
    disk: NotRequired[int]


class Divergence(TypedDict):
    """token: the first of the prompt's that differs. message_index, role: of a chat's messages.

    context: both continuations in one line, the differing part as [cached|requested]. cached,
    requested: that part. Control characters are escaped. They are null where the text may be
    another key's: see docs/explain.md. retokenized: the texts agree, and only the tokens differ.
    """

    token: int
    message_index: int | None
    role: str | None
    retokenized: bool
    context: str | None
    cached: str | None
    requested: str | None


class Unread(TypedDict):
    """read_seconds: about how long it would have taken; null and "" where that is not known."""

    tokens: int
    read_seconds: float | None
    computed_because: str


class CacheReport(TypedDict):
    """index: of the prompt, where there are several. advice: what to do, null for nothing.

    reason: why no more was cached, as the cache knows it; cause: what that comes from. text: the
    same in a sentence. evicted_tokens, evicted_seconds_ago, hits: of what is, or was, there.
    on_host, on_disk: of what was evicted, what could have been read, and was computed instead;
    what is in both is named once.
    replica, routed_because: where there are several.
    changes: what of the request was not taken as it came, a sentence for each.
    drafts: of the prompt's answers, by source, where there were some.
    """

    index: int
    prompt_tokens: int
    cached_tokens: CachedTokens
    computed_tokens: int
    reason: MissReason
    cause: Cause
    text: str
    advice: str | None
    divergence: NotRequired[Divergence]
    evicted_tokens: NotRequired[int]
    evicted_seconds_ago: NotRequired[float]
    hits: NotRequired[int]
    on_host: NotRequired[Unread]
    on_disk: NotRequired[Unread]
    replica: NotRequired[str]
    routed_because: NotRequired[str]
    changes: NotRequired[list[str]]
    drafts: NotRequired[dict[str, DraftedTokens]]


class CacheReported(TypedDict, total=False):
    """The report of an answer's usage, there with cache_report; a list where there are several
    prompts.
    """

    cache_report: CacheReport | list[CacheReport]


class CachedDetails(TypedDict):
    """Cached tokens as SGLang has them. storage: with a --disk-cache."""

    device: int
    host: int
    storage: NotRequired[int]


class SglExt(TypedDict):
    cached_tokens_details: CachedDetails


class CacheDetails(CacheReported, total=False):
    """sglext: with return_cached_tokens_details."""

    sglext: SglExt


def as_report(index: int, miss: MissReport, found: Finding, *, shows_text: bool) -> CacheReport:
    """shows_text: whether what is cached may be shown to the client."""
    report: CacheReport = {
        "index": index,
        "prompt_tokens": miss.prompt_tokens,
        "cached_tokens": _by_place(miss),
        "computed_tokens": miss.prompt_tokens - miss.cached,
        "reason": miss.reason,
        "cause": found.cause,
        "text": _sentence(miss, found, shows_text=shows_text),
        "advice": found.fix or None,
    }
    parted = found.difference
    if parted is not None:
        spot = found.spot
        report["divergence"] = {
            "token": found.position,
            "message_index": None if spot is None else spot.message,
            "role": None if spot is None else spot.role,
            "retokenized": found.cause == "retokenized",
            "context": parted.marked if shows_text else None,
            "cached": parted.cached if shows_text else None,
            "requested": parted.requested if shows_text else None,
        }
    if miss.evicted:
        report["evicted_tokens"] = miss.evicted
    if miss.evicted_ago is not None:
        report["evicted_seconds_ago"] = miss.evicted_ago
    if miss.hits is not None:
        report["hits"] = miss.hits
    if miss.on_host:
        report["on_host"] = {
            "tokens": miss.on_host,
            "read_seconds": miss.host_seconds,
            "computed_because": miss.computed_because,
        }
    if miss.on_disk:
        report["on_disk"] = {
            "tokens": miss.on_disk,
            "read_seconds": miss.read_seconds,
            "computed_because": miss.computed_because,
        }
    if miss.replica:
        report["replica"] = miss.replica
        report["routed_because"] = miss.routed_because
    return report


def _by_place(miss: MissReport) -> CachedTokens:
    host, disk = miss.from_host, miss.from_disk
    places: CachedTokens = {"device": miss.cached - (host or 0) - (disk or 0)}
    if host is not None:
        places["host"] = host
    if disk is not None:
        places["disk"] = disk
    return places


def _sentence(miss: MissReport, found: Finding, *, shows_text: bool) -> str:
    head = f"{miss.cached} of {miss.prompt_tokens} tokens were cached"
    parted = found.difference
    if parted is not None:
        shown = f": {parted.marked}" if shows_text else ""
        return f"{head}; they diverge at {found.place}, where {found.what}{shown}"
    if miss.reason is MissReason.EVICTED:
        ago = miss.evicted_ago
        went = (
            "though never in this pool" if ago is None else f"but had to make room {ago:.1f} s ago"
        )
        had_been = f"{miss.evicted} from {found.place} on had been, {went}"
        stored = f"; of these {miss.stored_in_words}" if miss.stored_in_words else ""
        rest = "" if found.cause is Cause.EVICTED else f"; of the rest {found.what}"
        return f"{head}; {had_been}{stored}{rest}"
    if found.cause in (Cause.FIRST_SEEN, Cause.BLOCK_FLOOR) and miss.cached:
        return f"{head}; from {found.place} on {found.what}"
    return f"{head}; {found.what}"
