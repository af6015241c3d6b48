"""The making of a running engine from an EngineConfig: every part is made here, and handed what it
needs.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import torch

from radixlm.assembly.chosen import chosen, reached_of
from radixlm.assembly.dense_modules import read_dense
from radixlm.assembly.heads import ProductPacking, load_head
from radixlm.assembly.model_impl import by_transformers, load_foreign
from radixlm.assembly.places import open_places
from radixlm.assembly.pool_sizes import default_tokens, make_memory
from radixlm.assembly.rank_setup import BackgroundWorkers, ParallelRanks, start_ranks
from radixlm.assembly.resolve import resolve_context, resolve_threads
from radixlm.assembly.scorers import read_scorer
from radixlm.assembly.state_slots import States
from radixlm.assembly.store_facts import EngineFacts
from radixlm.assembly.warming import warm_up
from radixlm.assembly.windows import Windows
from radixlm.cache import EvictionPolicy, RadixCache, make_policy
from radixlm.core.config import EngineConfig
from radixlm.core.errors import ConfigError, InvalidRequestError
from radixlm.engine import EngineClient, InputProcessor, Limits
from radixlm.engine.adapter_names import Adapters, NamedPath
from radixlm.engine.engine_core import Launch, Runner
from radixlm.engine.loop import Inbound
from radixlm.engine.pooled_states import PooledStates
from radixlm.engine.wiring import make_cache, make_core, resolve_pin_budget
from radixlm.formats.model_files import ModelFile, ModelFiles
from radixlm.formats.pooling import Pooling, pooling_of
from radixlm.formats.scoring import Scoring
from radixlm.formats.weight_files import stamped
from radixlm.kernels.jit import user_store
from radixlm.kernels.openmp import team
from radixlm.layers.linear import Quantize
from radixlm.layers.split import Split
from radixlm.memory.pools import KVPool, ReqToTokenPool
from radixlm.memory.state_pool import StatePool
from radixlm.memory.store_folder import private_folder
from radixlm.models.draft_head import DraftHead
from radixlm.models.gguf_checkpoint import GGUFCheckpoint
from radixlm.models.loader import load_model
from radixlm.models.model_config import ModelConfig, recommended_sampling
from radixlm.models.quantized_checkpoints import open_checkpoint
from radixlm.models.safetensors_files import CutCheckpoint
from radixlm.products.gemm_choice import Choose, one_way
from radixlm.products.product_table import ProductTable
from radixlm.products.quantizing import quantize, quantize_e4m3
from radixlm.runner.adapter_shelf import AdapterShelf
from radixlm.runner.model_runner import Model, ModelRunner
from radixlm.runner.paced import PacedRunner
from radixlm.runner.ranks import leading
from radixlm.runner.step_answers import Swap
from radixlm.runner.step_graphs import record_for
from radixlm.structured_output import Compiler, MaskFiller
from radixlm.text.chat_template import ChatTemplate
from radixlm.text.model_folder import DEMO_MODEL, DEMO_NAME
from radixlm.text.prefix_check import BrokenPrefix, broken_prefixes, warning_of
from radixlm.text.tokenizer import Tokenizer

_logger = logging.getLogger("radixlm.assembly")

QUANTIZERS: Mapping[str, Quantize] = {
    "int8": partial(quantize, bits=8),
    "fp8": quantize_e4m3,
    "int4": partial(quantize, bits=4, group=32),
}


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """The facts of what was loaded, and how. Sizes in tokens.

    max_pinned_tokens: the most that pins may keep.
    recommended_sampling: what the model's generation_config.json gives, unchecked.
    broken_prefixes: what the chat template does not keep of earlier turns.
    threads: that compute, where that is the CPU.
    deterministic: whether a request has the same bits in any company.
    kv_cache_dtype: what keys and values are kept in. quantization: what weights were made when they
    were loaded; empty: they are as they were stored. routed: it is one of several, or may be.
    tp_size: ranks; kv_bytes are those of all. mamba_slots: of states, and their bytes. pooling: how
    an embedding is made. scoring: how texts are scored.
    """

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
    max_pinned_tokens: int = 0
    recommended_sampling: Mapping[str, Any] = field(default_factory=dict)
    broken_prefixes: tuple[BrokenPrefix, ...] = ()
    threads: int = 1
    deterministic: bool = False
    kv_cache_dtype: str = "float32"
    quantization: str = ""
    host_tokens: int = 0
    disk_cache: str = ""
    disk_tokens: int = 0
    routed: bool = False
    tp_size: int = 1
    mamba_slots: int = 0
    mamba_bytes: int = 0
    pooling: Pooling = field(default_factory=Pooling)
    scoring: Scoring = field(default_factory=Scoring)
    hidden_size: int = 0


@dataclass(frozen=True, slots=True)
class Loaded:
    """A running engine and what is needed to talk to it."""

    config: EngineConfig
    info: ModelInfo
    tokenizer: Tokenizer
    chat_template: ChatTemplate | None
    client: EngineClient


def load(
    config: EngineConfig,
    *,
    progress: bool = True,
    warm: bool = False,
    swap: Swap = None,
) -> Loaded:
    """Load the model, start its engine. warm: and its kernels. swap: see `StepAnswers.read`. Raises
    ConfigError, ModelError.
    """
    if config.disk_cache is not None:  # said before the model is loaded
        private_folder(Path(config.disk_cache))
    with _computing(config) as threads, ExitStack() as if_it_fails:
        loaded = _load(config, threads, if_it_fails, swap, progress=progress, warm=warm)
        if_it_fails.pop_all()
    if (store := user_store()) is not None and (made := store.news()):
        _logger.info("First start of such a model here, %s", made)
    return loaded


@contextmanager
def _computing(config: EngineConfig) -> Iterator[int]:
    """Gives this thread as many as the engine will have, and then back what it had."""
    before = torch.get_num_threads()
    threads = resolve_threads(config, before)
    torch.set_num_threads(threads)
    try:
        yield threads
    finally:
        torch.set_num_threads(before)


def _load(
    config: EngineConfig, threads: int, undo: ExitStack, swap: Swap, *, progress: bool, warm: bool
) -> Loaded:
    policy = make_policy(config.eviction_policy)
    files, model_config, device, dtype = chosen(config)
    weights, context = stamped(files.weights()), resolve_context(config, model_config)
    tokenizer, template = texts_of(config, files)
    made_of_states, pooled = _pooled(config, files, model_config, tokenizer)
    ranks = start_ranks(config, files, model_config, device, threads, undo)
    reached, split = reached_of(config, model_config), None if ranks is None else ranks.split
    model = make_model(config, files, reached, dtype, device, progress=progress, split=split)
    head = load_head(config, files, model, dtype, device, _packing(config))
    windows = Windows.of(config, model.config)._replace(beside=head.token_bytes(config, dtype))
    capacity = _capacity(config, model.config, windows, dtype, device, ranks)
    kv_bytes = int(capacity * windows.token_bytes(config, model.config, dtype))
    states = States.of(config, model.config, dtype, kv_bytes, device)
    cache = _cache(config, policy, windows, states, capacity, context)
    limits = Limits(context, cache.largest_request, model_config.vocab_size, reached.short_length)
    sizes = cache.capacity, limits.longest, windows.in_pool(cache.windows)
    pool, table = make_memory(config, model.config, *sizes, dtype, device, head.rows)
    inbox, state_pool = SimpleQueue[Inbound](), states.pool()
    source = EngineFacts(files, weights, model.config, threads, head.weights)
    places = open_places(config, source, pool, state_pool, inbox.put, progress=progress)
    runner, adapters = _runner(config, model, pool, state_pool, table, (ranks, swap, head.head))
    info = ModelInfo(
        name=DEMO_NAME if files.path == DEMO_MODEL else files.name,
        model_path=str(files.path),
        model_type=model_config.model_type,
        vocab_size=model_config.vocab_size,
        context_length=limits.context_length,
        kv_tokens=cache.capacity,
        kv_bytes=pool.nbytes + (0 if ranks is None else ranks.kv_bytes),
        dtype=_name(dtype),
        device=str(device),
        eos_token_ids=tuple(sorted(eos := _ends(model_config, tokenizer))),
        max_pinned_tokens=cache.pins.budget,
        recommended_sampling=recommended_sampling(files),
        broken_prefixes=_checked_prefixes(template, tokenizer),
        threads=threads,
        kv_cache_dtype=_name(pool.keys[0].dtype),
        **_as_flags_say(config) | made_of_states,
        **states.described(),
        **places.described(),
    )
    grammars = Compiler(tokenizer, vocab_size=limits.vocab_size, eos_ids=eos)
    processor = InputProcessor(limits, eos, grammars)
    masks = MaskFiller(limits.vocab_size)
    making = partial(make_core, config, tokenizer=tokenizer, masks=masks, limits=limits)
    if warm:
        warm_up(partial(making, runner=runner), cache, processor, grammars)
    if device.type == "cpu":  # not before: the grammars' process is no crowd that stays
        runner = PacedRunner(runner, model_config.n_layers, threads=threads)
    most, launch = config.max_queued_requests, _launch_of(runner, config)
    core = making(cache, runner=runner, tiering=places.tiering, pooled=pooled, launch=launch)
    team().leave()  # from here on the engine's thread computes
    beside = places if ranks is None else BackgroundWorkers(places, ranks, inbox)
    client = EngineClient(
        core, processor, max_queued_requests=most, inbox=inbox, places=beside, adapters=adapters
    )
    return Loaded(config, info, tokenizer, template, client)


def _runner(
    config: EngineConfig,
    model: Model,
    pool: KVPool,
    states: StatePool | None,
    table: ReqToTokenPool,
    parts: tuple[ParallelRanks | None, Swap, DraftHead | None],
) -> tuple[Runner, Adapters]:
    """The runner with the adapters of the flag, loaded. Raises ConfigError, ModelError."""
    ranks, swap, head = parts
    shelf = AdapterShelf(model, deterministic=config.deterministic, ranks=config.tp_size)
    adapters = Adapters(shelf)
    for text in config.lora_paths:
        try:
            adapters.load(*NamedPath.of(text))
        except (ConfigError, InvalidRequestError) as error:
            raise ConfigError(f"--lora-paths {text}: {error}") from None
    if ranks is not None:
        return leading(model, pool, table, pool.device, ranks), adapters
    runner = ModelRunner(
        model,
        pool,
        table,
        pool.device,
        deterministic=config.deterministic,
        adapters=shelf,
        states=states,
        swap=swap,
        head=head,
        record=None if config.disable_cuda_graph else record_for(model, pool),
    )
    return runner, adapters


def _launch_of(runner: Runner, config: EngineConfig) -> Launch | None:
    """The launch of a runner that steps can be launched ahead by; None: of others."""
    if config.disable_overlap_schedule or not isinstance(runner, ModelRunner):
        return None
    return runner.launch if runner.goes_ahead else None


def _as_flags_say(config: EngineConfig) -> dict[str, Any]:
    """Fields of ModelInfo."""
    return {
        "page_size": config.page_size,
        "deterministic": config.deterministic,
        "quantization": config.quantization or "",
        "tp_size": config.tp_size,
    }


def _pooled(
    config: EngineConfig, files: ModelFiles, model: ModelConfig, tokenizer: Tokenizer
) -> tuple[dict[str, Any], PooledStates]:
    """Fields of ModelInfo, and what makes embeddings and scores. Raises CheckpointError."""
    scoring, scorer = read_scorer(config, files, model, tokenizer)
    pooling = pooling_of(files, foreign=by_transformers(config, files))
    if dense := read_dense(files, model.hidden_size):
        pooling = replace(pooling, dimensions=dense[-1].weight.shape[0])
    described = {"hidden_size": model.hidden_size, "pooling": pooling, "scoring": scoring}
    return described, PooledStates(scorer, dense)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _ends(model: ModelConfig, tokenizer: Tokenizer) -> frozenset[int]:
    """The tokens that end an answer."""
    own = tokenizer.eos_token_id
    return model.eos_token_ids | (frozenset() if own is None else {own})


def texts_of(config: EngineConfig, files: ModelFiles) -> tuple[Tokenizer, ChatTemplate | None]:
    """The model's own, or those that flags name. Raises ConfigError, ModelError."""
    tokenizer, template = (
        Path(name) if name else None for name in (config.tokenizer, config.chat_template)
    )
    return Tokenizer.load(tokenizer or files), ChatTemplate.load(files, template)


def _cache(
    config: EngineConfig,
    policy: EvictionPolicy,
    windows: Windows,
    states: States,
    capacity: int,
    context: int,
) -> RadixCache:
    pin_budget = resolve_pin_budget(config, capacity, context)
    size = windows.size(config, capacity)
    return make_cache(config, policy, capacity, pin_budget, windows=size, states=states.capacity)


def _capacity(
    config: EngineConfig,
    model: ModelConfig,
    windows: Windows,
    dtype: torch.dtype,
    device: torch.device,
    ranks: ParallelRanks | None,
) -> int:
    """Tokens that the pool has room for, those of all ranks, which have loaded by then."""
    if ranks is None:
        return config.kv_tokens or default_tokens(config, model, windows, dtype, device)
    others, counted = ranks.loaded(), replace(model, n_kv_heads=ranks.heads)
    return config.kv_tokens or min(others, default_tokens(config, counted, windows, dtype, device))


def _choice_of_products(config: EngineConfig) -> Choose:
    measured = ProductTable(user_store()).choice
    return partial(one_way, quantized=measured) if config.deterministic else measured


def _packing(config: EngineConfig) -> ProductPacking:
    quantize = QUANTIZERS[config.quantization] if config.quantization else None
    return ProductPacking(choose=_choice_of_products(config), quantize=quantize)


def make_model(
    config: EngineConfig,
    files: ModelFiles,
    reached: ModelConfig,
    dtype: torch.dtype,
    device: torch.device,
    *,
    progress: bool,
    split: Split | None = None,
) -> Model:
    """reached: the model's shape, with the context that will be used. split: which part of it."""
    if by_transformers(config, files):
        return load_foreign(files, reached, dtype, device, _choice_of_products(config))
    checkpoint = checkpoint_of(files, reached)
    if config.quantization and device.type != "cpu":
        raise ConfigError(
            "--quantization is for CPUs; on a GPU serve a folder of quantized weights"
        )
    if config.quantization and checkpoint.is_quantized:
        raise ConfigError(
            f"--quantization {config.quantization} quantizes weights in floats, but those of "
            f"{checkpoint.where!r} are quantized already: leave the flag out"
        )
    return load_model(
        checkpoint,
        reached,
        dtype=dtype,
        device=device,
        **_packing(config),
        progress=progress,
        split=split,
    )


def checkpoint_of(files: ModelFiles, shape: ModelConfig) -> GGUFCheckpoint | CutCheckpoint:
    """Open the weights that our own files compute. Raises ModelError."""
    if isinstance(files, ModelFile):
        return GGUFCheckpoint(files.gguf, shape)
    return open_checkpoint(files.path)


def _checked_prefixes(
    template: ChatTemplate | None, tokenizer: Tokenizer
) -> tuple[BrokenPrefix, ...]:
    broken = () if template is None else broken_prefixes(template, tokenizer)
    if broken:
        _logger.warning("%s (/model_info has more)", warning_of(broken))
    return broken
