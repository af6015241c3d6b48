"""What the routes want of an engine: one in this process, or several on other machines."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Sequence
from typing import Protocol

from radixlm.build import ModelInfo
from radixlm.core.config import EngineConfig
from radixlm.core.misses import Explained
from radixlm.core.reports import MAX_WAITING, TreeQuery
from radixlm.core.request import GenerateRequest, Hint, Namespace, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.engine import EngineStats, Limits
from radixlm.engine.input_processor import Prompt
from radixlm.engine.watching import Scene, SceneChange
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.tokenizer import Tokenizer


class Watched(Protocol):
    """As engine.mailbox.Viewer. dropped: updates that were lost so far."""

    dropped: int

    async def next(self) -> Scene | SceneChange: ...
    def close(self) -> None: ...


class ServedEngine(Protocol):
    """As AsyncEngine, which is one."""

    @property
    def config(self) -> EngineConfig: ...
    @property
    def info(self) -> ModelInfo: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def tokenizer(self) -> Tokenizer: ...
    @property
    def chat_template(self) -> ChatTemplate | None: ...
    def check_room(self) -> None: ...
    def stream_all(
        self, requests: Sequence[GenerateRequest]
    ) -> AsyncGenerator[RequestOutput, None]: ...
    async def generate(self, prompt: Prompt, params: SamplingParams) -> RequestOutput: ...
    def abort(self, request_ids: Iterable[str] | None) -> int: ...
    def stats(self) -> EngineStats: ...
    def health(self) -> None: ...
    async def flush_cache(self) -> bool: ...
    async def look(self, query: TreeQuery) -> Scene: ...
    def watch(
        self, query: TreeQuery, *, max_waiting: int = MAX_WAITING, own: bool = False
    ) -> Watched: ...
    async def explain(
        self, prompt: Prompt, *, namespace: Namespace | None = None, everywhere: bool = False
    ) -> Explained: ...
    async def hint(
        self, prompt: Prompt, hint: Hint, *, namespace: Namespace | None = None
    ) -> int: ...
