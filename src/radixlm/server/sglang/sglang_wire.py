"""What SGLang's and vLLM's routes answer, as JSON. /openapi.json is written from these types."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NotRequired

from typing_extensions import TypedDict

from radixlm.build import ModelInfo
from radixlm.core.config import EngineConfig
from radixlm.core.request import FinishReason
from radixlm.engine.engine_stats import EngineStats
from radixlm.server.config.kv_events_config import KVEventSource
from radixlm.server.pipeline.cache_wire import CacheReport
from radixlm.server.pipeline.logprobs import NativeToken


class NativeFinish(TypedDict):
    """length: of the answer in tokens. matched: the stop string or token that ended it."""

    type: FinishReason
    length: NotRequired[int]
    matched: NotRequired[str | int | None]
    message: NotRequired[str]


class NativeLists(TypedDict, total=False):
    """They are there with return_logprob, the top ones with top_logprobs_num."""

    input_token_logprobs: list[NativeToken]
    output_token_logprobs: list[NativeToken]
    input_top_logprobs: list[list[NativeToken] | None]
    output_top_logprobs: list[list[NativeToken] | None]


class NativeMeta(NativeLists):
    """e2e_latency: in seconds, at the end; cache_report too, where it was asked for."""

    id: str
    finish_reason: NativeFinish | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    e2e_latency: NotRequired[float]
    cache_report: NotRequired[CacheReport]


class Generated(TypedDict):
    """index: in a stream of several answers, which one it is."""

    text: str
    output_ids: list[int]
    meta_info: NativeMeta
    index: NotRequired[int]


class Status(TypedDict):
    status: Literal["ok"]


class Aborted(TypedDict):
    """How many requests were under way."""

    aborted: int


class CacheReset(TypedDict):
    success: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel(ModelInfo):
    served_model_name: str
    is_generation: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFacts(EngineConfig):
    """kv_events: null where they are not published, or not over TCP. threads: of a step."""

    threads: int
    served_model_name: str
    model_path: str
    max_total_num_tokens: int
    max_req_input_len: int
    version: str
    kv_events: KVEventSource | None
    internal_states: list[EngineStats]


class Load(TypedDict):
    dp_rank: int
    timestamp: float
    num_running_reqs: int
    num_waiting_reqs: int
    num_used_tokens: int
    max_total_num_tokens: int
    token_usage: float
    cache_hit_rate: float
    utilization: float
    max_running_requests: int


class Loads(TypedDict):
    """timestamp: as ISO 8601. loads: one entry, since there is one engine."""

    timestamp: str
    version: str
    loads: list[Load]
