"""The same greedy tokens as transformers, however they are computed."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, get_args

import numpy as np
import torch

from radixlm import Engine, Namespace, RequestOutput, SamplingParams
from radixlm.attention.backends import make_backend
from radixlm.attention.plan import make_plan
from radixlm.cache import NAMES, RadixCache
from radixlm.core.batch import ScheduledBatch, ScheduledRow
from radixlm.core.config import SchedulePolicy
from radixlm.core.keys import as_key
from radixlm.core.request import GenerateRequest
from radixlm.layers.step_states import StateRow, StepStates
from radixlm.memory.pools import KVPool, ReqToTokenPool
from radixlm.memory.staging import Sending
from radixlm.memory.state_pool import StatePool
from radixlm.models import PlainCheckpoint, load_config, load_model
from radixlm.runner.model_runner import ForwardBatch
from radixlm.testing.reference import Greedy, load_reference, reference_logits

# Two tokens whose reference logits are closer than this are equally good.
TIE = 1e-5
SMALL_POOL = 480
BLOCK = 8
# Seconds.
COPIES_TAKE = 10.0
WAVES = 4


@dataclass(frozen=True)
class Setting:
    """One way to run the engine.

    again: take the second of two runs, the cache being warm. retracts: it must run out of memory.
    pinned: prefixes that are pinned between two runs. salted: every other prompt has a namespace
    of its own kind. ranked: the prompts come in waves, each of higher priority than the last, and
    some must be preempted. buries: of a model with windows, tokens must lose their window slots.
    states: of models that carry states alone; some of them must be evicted.
    place: where `share` of each prompt from its front was stored before by another engine ("disk"),
    or by this one before it was evicted ("host").
    """

    name: str
    flags: dict[str, Any]
    again: bool = False
    retracts: bool = False
    pinned: int = 0
    salted: bool = False
    ranked: bool = False
    place: str = ""
    share: float = 1.0
    buries: bool = False
    states: bool = False


def _tight(**flags: Any) -> dict[str, Any]:
    return {"kv_tokens": SMALL_POOL, "schedule_conservativeness": 0.0, **flags}


# So small a pool that most of it is copied.
_HOSTED = {"kv_tokens": 128, "host_kv_tokens": 20_000, "max_running_requests": 1}


def _few_windows(**flags: Any) -> dict[str, Any]:
    """Layers with a window have slots of their own, so few that tombstones are made."""
    few = {"swa_full_tokens_ratio": 0.05, "chunked_prefill_size": 16}
    return {"kv_tokens": 2_000} | few | flags


SETTINGS = (
    Setting("cache off", {"disable_radix_cache": True}),
    Setting("cache on, cold", {}),
    Setting("cache on, warm", {}, again=True),
    Setting("cache on, fcfs", {"schedule_policy": "fcfs"}),
    Setting("chunked prefill 16", {"chunked_prefill_size": 16}),
    Setting("batch of 1", {"max_running_requests": 1}),
    Setting("batch of 8", {"max_running_requests": 8}),
    Setting("batch of 32", {"max_running_requests": 32}),
    Setting("page size 16, cold", {"page_size": 16}),
    Setting("page size 16, warm", {"page_size": 16}, again=True),
    Setting("namespaces", {}, salted=True),
    Setting("small pool, pages of 16", _tight(page_size=16), retracts=True),
    Setting("small pool, cache off", _tight(disable_radix_cache=True), retracts=True),
    *(
        Setting(f"small pool, {policy}", _tight(eviction_policy=policy), retracts=True)
        for policy in NAMES
    ),
    *(
        Setting(f"small pool, {order}", _tight(schedule_policy=order), retracts=True)
        for order in get_args(SchedulePolicy)
    ),
    Setting(
        "preemption",
        {
            "schedule_policy": "priority",
            "priority_scheduling_preemption_threshold": 1,
            "max_running_requests": 4,
        },
        retracts=True,
        ranked=True,
    ),
    Setting("small pool, pins", _tight(max_pinned_tokens=96), retracts=True, pinned=3),
    Setting("tombstones", _few_windows(), again=True, buries=True),
    Setting("tombstones, pages of 16", _few_windows(page_size=16), again=True, buries=True),
    Setting(
        "tombstones, small pool",
        _few_windows(**_tight()),
        again=True,
        retracts=True,
        buries=True,
    ),
    Setting("small pool, namespaces", _tight() | {"kv_tokens": 240}, retracts=True, salted=True),
    Setting("from host memory", _HOSTED, place="host"),
    Setting("three quarters from host memory", _HOSTED, place="host", share=0.75),
    Setting("from disk", {}, place="disk"),
    Setting("half from disk", {}, place="disk", share=0.5),
)

# Of models that carry states: a ladder of checkpoints, in chunks that end between them; so few
# slots that hardly any stays, and fewer than requests would run with.
STATE_SETTINGS = (
    Setting(
        "a ladder of 8, chunks of 12",
        {
            "state_checkpoint_interval": 8,
            "chunked_prefill_size": 12,
            "max_running_requests": 4,
            "max_mamba_cache_size": 24,
        },
        again=True,
        states=True,
    ),
    Setting("6 states", {"max_mamba_cache_size": 6}, again=True, states=True),
    Setting(
        "2 states, a ladder of 8",
        {"max_mamba_cache_size": 2, "state_checkpoint_interval": 8},
        again=True,
        states=True,
    ),
    Setting(
        "6 states, small pool",
        _tight(max_mamba_cache_size=6, kv_tokens=240),
        again=True,
        retracts=True,
        states=True,
    ),
)


@dataclass(frozen=True)
class Outcome:
    """equal + ties + different == prompts. ties: first difference where the gap is below TIE.
    refused: why the engine does not run this model so; there are no counts then.
    """

    setting: str
    equal: int = 0
    ties: int = 0
    different: int = 0
    retractions: int = 0
    preemptions: int = 0
    cached: int = 0
    drafted: int = 0
    accepted: int = 0
    refused: str = ""


def make_prompts(count: int, vocab_size: int, seed: int = 0) -> list[list[int]]:
    """Families of 8 that share 24 tokens and sub-families that share more; 25 to 48 tokens."""
    draw = np.random.default_rng(seed)
    prompts = []
    for index in range(count):
        family = np.random.default_rng((seed, index // 8)).integers(0, vocab_size, 24)
        branch = np.random.default_rng((seed, index // 8, index % 3)).integers(0, vocab_size, 6)
        own = draw.integers(0, vocab_size, int(draw.integers(1, 18)))
        prompts.append([*family.tolist(), *branch.tolist(), *own.tolist()])
    return prompts


def run_setting(
    folder: Path, setting: Setting, prompts: list[list[int]], expected: Greedy, device: str
) -> Outcome:
    """Run the engine in one setting and compare every token."""
    steps = len(expected.tokens[0])
    params = SamplingParams(max_tokens=steps, temperature=0, ignore_eos=True)
    flags = {"kv_tokens": 20_000, "dtype": "float32", "device": device} | setting.flags
    with _stored(folder, setting, prompts, flags) as engine:
        run = _salted if setting.salted else _ranked if setting.ranked else _plain
        outputs = run(engine, prompts, params)
        for prompt in prompts[: 8 * setting.pinned : 8]:
            engine.generate([prompt[:25]], params)
            engine.pin(prompt[:24])
        if setting.again or setting.pinned:
            outputs = run(engine, prompts, params)
        end = time.monotonic() + COPIES_TAKE
        while (stats := engine.stats()).kv_locked > stats.kv_pinned and time.monotonic() < end:
            time.sleep(0.01)
    assert stats.leaks == 0
    assert stats.kv_free + stats.kv_evictable + stats.kv_pinned == stats.kv_capacity
    assert (stats.kv_pinned > 0) == (setting.pinned > 0)
    windows = stats.swa_free + stats.swa_evictable + stats.swa_locked
    assert windows == stats.swa_capacity
    assert not setting.buries or (stats.swa_evicted_tokens > 0) == (stats.swa_capacity > 0)
    assert not setting.states or stats.mamba_evicted > 0
    assert stats.mamba_free + stats.mamba_evictable + stats.mamba_locked == stats.mamba_capacity
    assert (stats.preemptions > 0) == setting.ranked
    assert (stats.host_restored > 0, stats.disk_restored > 0) == (
        setting.place == "host",
        setting.place == "disk",
    )
    counts = stats.retractions, stats.preemptions, stats.cached_tokens
    drafts = stats.draft_tokens, stats.accepted_tokens
    return Outcome(setting.name, *compared(outputs, expected), *counts, *drafts)


def compared(outputs: Sequence[RequestOutput], expected: Greedy) -> tuple[int, int, int]:
    """How many answers are equal, differ first where the gap is below TIE, and differ."""
    equal = ties = different = 0
    for output, tokens, gaps in zip(outputs, expected.tokens, expected.gaps, strict=True):
        given = list(output.token_ids)
        if given == tokens:
            equal += 1
            continue
        pairs = zip(given, tokens, strict=True)
        first = next(index for index, (ours, theirs) in enumerate(pairs) if ours != theirs)
        if gaps[first] < TIE:
            ties += 1
        else:
            different += 1
    return equal, ties, different


@contextmanager
def _stored(
    folder: Path, setting: Setting, prompts: list[list[int]], flags: dict[str, Any]
) -> Iterator[Engine]:
    """An engine that knows what the setting wants stored. From host memory comes what the last of
    the beginnings drove out of the pool.
    """
    if not setting.place:
        with Engine(str(folder), **flags) as engine:
            yield engine
        return
    begun = [prompt[: max(BLOCK, round(setting.share * len(prompt)))] for prompt in prompts]
    params = SamplingParams(max_tokens=1, temperature=0)
    flags = flags | {"disk_block_tokens": BLOCK}
    with tempfile.TemporaryDirectory() as scratch:
        if setting.place == "disk":
            flags |= {"disk_cache": scratch, "disk_cache_gb": 0.1}
            with Engine(str(folder), **flags, disk_write_policy="all") as engine:
                engine.generate(begun, params)
                known = settled(lambda: engine.stats().disk_tokens)
        with Engine(str(folder), **flags) as engine:
            if setting.place == "disk":
                assert settled(lambda: engine.stats().disk_tokens) >= known
            else:
                engine.generate(begun, params)
                settled(lambda: engine.stats().host_tokens)
            yield engine


def settled(count: Callable[[], int]) -> int:
    """Once it is above zero and has not grown for a moment."""
    before, end = 0, time.monotonic() + COPIES_TAKE
    while not before or count() > before:
        assert time.monotonic() < end, "nothing is stored"
        before = count()
        time.sleep(0.3)
    return before


def _plain(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> list[RequestOutput]:
    return engine.generate(prompts, params)


def _salted(
    engine: Engine, prompts: list[list[int]], params: SamplingParams
) -> list[RequestOutput]:
    """Every other prompt under a salt; the two kinds take turns in time, not in one batch."""
    outputs: list[RequestOutput | None] = [None] * len(prompts)
    for start, salt in ((0, ""), (1, "mine")):
        space = Namespace(cache_salt=salt)
        outputs[start::2] = engine.generate(prompts[start::2], params, namespace=space)
    return [output for output in outputs if output is not None]


def _ranked(
    engine: Engine, prompts: list[list[int]], params: SamplingParams
) -> list[RequestOutput]:
    """Waves of rising priority, each submitted while the one before runs."""
    waves = [prompts[start::WAVES] for start in range(WAVES)]
    outputs: list[RequestOutput | None] = [None] * len(prompts)
    with ThreadPoolExecutor(WAVES) as pool:
        futures = []
        for priority, wave in enumerate(waves):
            before = engine.stats().output_tokens
            futures.append(pool.submit(engine.generate, wave, params, priority=priority))
            while engine.stats().output_tokens < before + len(wave) and not futures[-1].done():
                time.sleep(0.001)
        for start, future in enumerate(futures):
            outputs[start::WAVES] = future.result()
    return [output for output in outputs if output is not None]


class Difference(NamedTuple):
    """The largest of any logit. good: within 1e-4, and 1e-5 of the logit: large ones have as few
    digits in transformers' own float32.
    """

    largest: float
    good: bool


@torch.inference_mode()
def logit_difference(folder: Path, prompts: Sequence[Sequence[int]], device: str) -> Difference:
    """Our logits of whole prompts, through pool, plan and backend, against transformers'."""
    config = load_config(folder)
    where = torch.device(device)
    checkpoint = PlainCheckpoint(folder)
    model = load_model(checkpoint, config, dtype=torch.float32, device=where, progress=False)
    theirs = load_reference(folder)
    shape = config.n_layers, 4_096, config.n_kv_heads, config.head_dim
    latent, shapes = config.traits.latents is not None, config.kv_shapes
    pool = KVPool(*shape, torch.float32, where, latent=latent, shapes=shapes)
    table = ReqToTokenPool(1, config.context_length, where)
    largest, good = 0.0, True
    for prompt in prompts:
        key = as_key(prompt)
        lease = RadixCache(4_096).acquire(key)
        slots = lease.extend(key.size)
        assert slots is not None
        request = GenerateRequest("r", key, SamplingParams(temperature=0))
        row = ScheduledRow(request, 0, key, 0, key.size, slots, (), lease.segments(), True)
        table.apply([row])
        batch = ForwardBatch.from_scheduled(ScheduledBatch((row,)), Sending(torch.device(where)))
        cap = config.traits.score_cap
        backend = make_backend(
            *(pool, config.n_heads),
            windows=config.windows,
            cap=cap,
            expansions=model.expansions,
            index=config.traits.indexer,
        )
        plan = make_plan((row,))
        attend = backend.prepare(plan, table.table, batch.slots)
        every = torch.arange(key.size, device=where)
        carried = StatePool(config.state_shapes, 1, torch.float32, where)
        states = StepStates([StateRow(0, key.size, 0, 0)], carried.conv, carried.matrices)
        given = batch.token_ids, batch.positions, attend, every, None, states
        ours = model.forward(*given).cpu()
        right = reference_logits(theirs, list(prompt))
        largest = max(largest, (ours - right).abs().max().item())
        good &= torch.allclose(ours, right, rtol=1e-5, atol=1e-4)
    return Difference(largest, good)
