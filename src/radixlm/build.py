"""The composition root: from an EngineConfig to the public Engine and AsyncEngine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from tqdm import tqdm

from radixlm.cache import Pin, RadixCache, make_policy
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError, ModelError
from radixlm.core.keys import Key
from radixlm.core.reports import TreeSnapshot
from radixlm.core.request import Namespace, Request, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.engine import EngineClient, EngineCore, EngineStats, Intake, collect
from radixlm.engine.prompts import Prompt, Prompts, as_list, params_for, prompt_key
from radixlm.memory.budget import default_kv_tokens
from radixlm.memory.kv_pool import KVPool, bytes_per_token
from radixlm.memory.req_to_token import ReqToTokenPool
from radixlm.models.config import ModelConfig, load_config
from radixlm.models.loader import load_model
from radixlm.runner.model_runner import ModelRunner
from radixlm.scheduler import Limits, Scheduler, make_order
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.tokenizer import Tokenizer

DEMO_MODEL = Path(__file__).parent / "demo_model"


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """What was loaded, and how. Sizes in tokens."""

    name: str
    model_path: str
    model_type: str
    vocab_size: int
    context_length: int
    kv_tokens: int
    kv_bytes: int
    page_size: int
    dtype: str
    device: str
    eos_token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Loaded:
    """A running engine and what is needed to talk to it."""

    config: EngineConfig
    info: ModelInfo
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    intake: Intake
    client: EngineClient

    def request(self, prompt: Prompt, params: SamplingParams, **options: Any) -> Request:
        """Tokenize and resolve a prompt. Raises InvalidRequestError."""
        return self.intake.make(self.key(prompt), params, **options)

    def key(self, prompt: Prompt) -> Key:
        """Tokenize a prompt. Raises InvalidRequestError."""
        return prompt_key(self.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt)

    async def stream(
        self, prompt: Prompt, params: SamplingParams, **options: Any
    ) -> AsyncGenerator[RequestOutput, None]:
        """Run a prompt and yield its outputs as they come; see AsyncEngine.stream."""
        outputs = self.client.stream(self.request(prompt, params, **options))
        try:
            async for output in outputs:
                yield output
        finally:
            await outputs.aclose()


def load(config: EngineConfig, *, progress: bool = True) -> Loaded:
    """Load the model and start its engine. Raises ConfigError and ModelError."""
    policy = make_policy(config.eviction_policy)
    folder = _folder(config.model)
    model_config = load_config(folder)
    device = _device(config.device)
    dtype = _dtype(config, model_config)
    tokenizer = Tokenizer.load(Path(config.tokenizer) if config.tokenizer else folder)
    template = ChatTemplate.load(
        folder, Path(config.chat_template) if config.chat_template else None
    )
    model = load_model(folder, model_config, dtype=dtype, device=device, progress=progress)
    shape = (model_config.n_layers, model_config.n_kv_heads, model_config.head_dim)
    capacity = config.kv_tokens or default_kv_tokens(bytes_per_token(*shape, dtype), device)
    cache = RadixCache(
        capacity,
        config.page_size,
        enabled=not config.disable_radix_cache,
        policy=policy,
        pin_budget=config.max_pinned_tokens,
    )
    limits = Limits(_context(config, model_config), cache.largest_request, model_config.vocab_size)
    n_rows = min(config.max_running_requests, config.chunked_prefill_size)
    try:
        pool = KVPool(shape[0], cache.capacity, shape[1], shape[2], dtype, device)
        table = ReqToTokenPool(n_rows, limits.longest, device)
    except (RuntimeError, MemoryError, ValueError) as error:
        raise ConfigError(
            f"no memory for a KV pool of {cache.capacity} tokens (--kv-tokens) and a table of "
            f"{n_rows} requests (--max-running-requests): {error}"
        ) from None
    runner = ModelRunner(model, pool, table, device)
    core = EngineCore(_scheduler(config, cache), cache, runner, tokenizer)
    eos = model_config.eos_token_ids | (
        frozenset() if tokenizer.eos_token_id is None else {tokenizer.eos_token_id}
    )
    info = ModelInfo(
        name="radixlm-demo" if folder == DEMO_MODEL else folder.resolve().name,
        model_path=str(folder),
        model_type=model_config.model_type,
        vocab_size=model_config.vocab_size,
        context_length=limits.context_length,
        kv_tokens=cache.capacity,
        kv_bytes=pool.nbytes,
        page_size=config.page_size,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        eos_token_ids=tuple(sorted(eos)),
    )
    client = EngineClient(core, max_queued_requests=config.max_queued_requests)
    return Loaded(config, info, tokenizer, template, Intake(limits, eos), client)


class AsyncEngine:
    """A model behind an asyncio interface; the engine itself runs on its own thread."""

    def __init__(self, loaded: Loaded) -> None:
        self._loaded = loaded
        self.config = loaded.config
        self.info = loaded.info
        self.model_name = loaded.info.name
        self.tokenizer = loaded.tokenizer
        self.chat_template = loaded.chat_template

    @classmethod
    def from_config(cls, config: EngineConfig) -> AsyncEngine:
        """Load the model (blocks). Raises ConfigError and ModelError."""
        return cls(load(config))

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        namespace: Namespace | None = None,
        priority: int = 0,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield what is new, as it comes. Closing the iterator aborts the request.

        The first step raises InvalidRequestError, QueueFullError or EngineDeadError.
        """
        return self._loaded.stream(
            prompt, params, request_id=request_id, namespace=namespace, priority=priority
        )

    async def generate(
        self,
        prompt: Prompt,
        params: SamplingParams,
        *,
        request_id: str | None = None,
        namespace: Namespace | None = None,
        priority: int = 0,
    ) -> RequestOutput:
        """Run a request to its end. Being cancelled aborts it."""
        outputs = self.stream(
            prompt, params, request_id=request_id, namespace=namespace, priority=priority
        )
        return RequestOutput.joined([output async for output in outputs])

    async def flush_cache(self) -> bool:
        """Drop all cached tokens that no request uses; False when requests were under way."""
        return (await asyncio.wrap_future(self._loaded.client.flush())).idle

    def health(self) -> None:
        """Raise EngineDeadError, with the reason, when the engine is gone."""
        self._loaded.client.check_health()

    def stats(self) -> EngineStats:
        """The engine in numbers, as of its last step."""
        return self._loaded.client.stats()

    async def close(self) -> None:
        """Stop the engine; requests under way end with an error."""
        await asyncio.to_thread(self._loaded.client.close)


class Engine:
    """A model in this process.

    Keywords are the flags of `radixlm serve` (see EngineConfig): model, kv_tokens, dtype,
    page_size, chunked_prefill_size, disable_radix_cache, ...

        with Engine() as engine:
            [out] = engine.generate("The capital of France is", SamplingParams(temperature=0))
    """

    def __init__(self, model: str | None = None, **flags: Any) -> None:
        self._loaded = load(EngineConfig.from_flags(model=model, **flags))
        self.config = self._loaded.config
        self.info = self._loaded.info
        self.tokenizer = self._loaded.tokenizer
        self.chat_template = self._loaded.chat_template

    def generate(
        self,
        prompts: Prompts,
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        namespace: Namespace | None = None,
        progress: bool = False,
    ) -> list[RequestOutput]:
        """Continue a prompt, or each of a list, and return the outputs in order.

        prompts: text, token ids, or a list of either. params: for all, or one for each.
        progress: show a bar on stderr.
        Raises InvalidRequestError before anything is run, EngineDeadError.
        """
        items = as_list(prompts)
        each = params_for(params, len(items))
        requests = [
            self._loaded.request(prompt, own, namespace=namespace)
            for prompt, own in zip(items, each, strict=True)
        ]
        outputs = self._loaded.client.run(requests)
        return collect(requests, _with_bar(outputs, len(requests)) if progress else outputs)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        namespace: Namespace | None = None,
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield what is new of one request, as it comes. Closing the iterator aborts it."""
        return self._loaded.stream(prompt, params or SamplingParams(), namespace=namespace)

    def flush_cache(self) -> int:
        """Drop all cached tokens that no request uses; returns how many."""
        return self._loaded.client.flush().result().tokens

    def pin(
        self, prompt: Prompt, *, namespace: Namespace | None = None, ttl: float | None = None
    ) -> Pin:
        """Keep what is cached of a prompt for `ttl` seconds, or until `unpin(pin.id)`.

        Raises PinError when nothing of it is cached, or over --max-pinned-tokens.
        """
        key = self._loaded.key(prompt)
        return self._loaded.client.pin(key, namespace or Namespace(), ttl).result()

    def unpin(self, pin_id: int) -> None:
        """Let go of a pin. Raises PinError when there is none of that id (any more)."""
        self._loaded.client.unpin(pin_id).result()

    def snapshot(self, *, max_depth: int | None = None, min_tokens: int = 0) -> TreeSnapshot:
        """The radix tree as it is between two steps, whole or pruned."""
        return self._loaded.client.snapshot(max_depth=max_depth, min_tokens=min_tokens).result()

    def stats(self) -> EngineStats:
        """The engine in numbers, as of its last step."""
        return self._loaded.client.stats()

    def close(self) -> None:
        """Stop the engine. Further calls raise EngineDeadError."""
        self._loaded.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def _folder(model: str | None) -> Path:
    if model is None:
        return DEMO_MODEL
    folder = Path(model).expanduser()
    if folder.is_file():
        raise ModelError(f"{model!r} is a file; give the folder that it is in")
    if not folder.is_dir():
        raise ModelError(
            f"there is no folder {model!r}; give the path of a model folder in Hugging Face "
            "format (download one with `hf download NAME --local-dir FOLDER`), or none at all "
            "for the embedded demo model"
        )
    return folder


def _device(name: str) -> torch.device:
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ConfigError(f"--device {name!r} is not a device: {error}") from None
    if device.type not in ("cpu", "cuda"):
        raise ConfigError(f"--device {name!r}: only cpu and cuda are supported")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(f"--device {name!r}: torch sees no CUDA device on this machine")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ConfigError(
            f"--device {name!r}: torch sees {torch.cuda.device_count()} CUDA devices, from cuda:0"
        )
    return device


def _dtype(config: EngineConfig, model: ModelConfig) -> torch.dtype:
    if config.dtype == "float32":
        return torch.float32
    if config.dtype == "bfloat16":
        return torch.bfloat16
    # float16 checkpoints run in bfloat16: the CPU has no float16 products worth having.
    return torch.bfloat16 if model.dtype == torch.float16 else model.dtype


def _context(config: EngineConfig, model: ModelConfig) -> int:
    wanted = config.context_length
    if wanted is None:
        return model.context_length
    if wanted > model.context_length:
        raise ConfigError(
            f"--context-length {wanted} is more than the model's {model.context_length}"
        )
    return wanted


def _scheduler(config: EngineConfig, cache: RadixCache) -> Scheduler:
    return Scheduler(
        cache,
        make_order(config.schedule_policy),
        chunked_prefill_size=config.chunked_prefill_size,
        max_running_requests=config.max_running_requests,
        schedule_conservativeness=config.schedule_conservativeness,
    )


def _with_bar(outputs: Iterator[RequestOutput], count: int) -> Iterator[RequestOutput]:
    tokens = cached = 0
    with tqdm(total=count, unit=" requests", dynamic_ncols=True) as bar:
        for output in outputs:
            tokens += len(output.token_ids)
            if output.finished:
                cached += output.cached_tokens
                bar.set_postfix(new_tokens=tokens, cached_tokens=cached, refresh=False)
                bar.update()
            yield output
