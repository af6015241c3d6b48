"""A cache and a core as a config asks for them, over any runner: what serves and what simulates are
put together here.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from radixlm.cache import RadixCache
from radixlm.cache.components.states import StateSlots
from radixlm.cache.components.window_slots import WindowSize
from radixlm.cache.radix.eviction import EvictionPolicy
from radixlm.core.batch import MOST_SIBLINGS
from radixlm.core.clock import Clock
from radixlm.core.config import HEADS, EngineConfig
from radixlm.drafts.corpus import CorpusDrafts
from radixlm.drafts.draft import DraftSource
from radixlm.drafts.tree_drafts import TreeDrafts
from radixlm.engine.engine_core import EngineCore, Launch, Runner
from radixlm.engine.limits import Limits
from radixlm.engine.pooled_states import PooledStates
from radixlm.engine.tiering import Tiering
from radixlm.engine.watching import Journal
from radixlm.scheduler import Drafting, DraftPolicy, Scheduler, WaitingRoom, make_order
from radixlm.structured_output import MaskFiller
from radixlm.text.tokenizer import Tokenizer

# Slots that a request is given ahead of its tokens: attention reads a run of slots as a view. A
# small pool has none to lay aside.
RESERVE = 128
_RESERVES_IN_POOL = 512
# Tokens of the tree and of ghosts that drafts are looked for in, 56 MiB.
_MOST_DRAFTED_FROM = 1 << 22
# Pins may keep at most 1 / this of the pool.
_PINS_IN_POOL = 4

MakeTiering = Callable[[RadixCache, WaitingRoom], Tiering | None]


def resolve_pin_budget(config: EngineConfig, capacity: int, context: int) -> int:
    """Most pinned tokens. Left open, it makes no prompt too long that would fit without pins."""
    if config.max_pinned_tokens is not None:
        return config.max_pinned_tokens
    if config.disable_radix_cache:
        return 0
    return min(capacity // _PINS_IN_POOL, max(capacity - context, 0))


def make_cache(
    config: EngineConfig,
    policy: EvictionPolicy,
    capacity: int,
    pin_budget: int,
    clock: Clock | None = None,
    windows: WindowSize | None = None,
    states: int = 0,
) -> RadixCache:
    """capacity: slots, whatever the config says. windows: see RadixCache. states: slots of these,
    where a model has some. Raises ConfigError.
    """
    return RadixCache(
        capacity,
        config.page_size,
        enabled=not config.disable_radix_cache,
        policy=policy,
        pin_budget=pin_budget,
        reserve=min(RESERVE, capacity // _RESERVES_IN_POOL),
        clock=clock,
        windows=windows,
        components=[partial(StateSlots, states)] if states else (),
    )


def _drafting(
    config: EngineConfig,
    cache: RadixCache,
    tokenizer: Tokenizer | None,
    limits: Limits | None,
    clock: Clock | None,
) -> Drafting:
    """Only what grammars force where the config wants no drafts, or `auto` has a model with states.
    Raises ConfigError for a corpus that can not be read, or is of other tokens.
    """
    algorithm = config.speculative_algorithm
    short_length = None if limits is None else limits.short_length
    if algorithm == "off" or (algorithm == "auto" and cache.states is not None):
        return Drafting((), 0, short_length=short_length)
    siblings, chooses = _sibling_rows(config, cache), algorithm == "auto"
    tree = TreeDrafts(cache.tree, _MOST_DRAFTED_FROM, siblings=bool(siblings) and chooses)
    sources: list[DraftSource] = [tree]
    if config.draft_corpus is not None and tokenizer is not None and limits is not None:
        path, encode = Path(config.draft_corpus), tokenizer.encode_plain
        sources.append(CorpusDrafts.load(path, encode, limits.vocab_size))
    return Drafting(
        sources,
        config.speculative_num_draft_tokens,
        None if algorithm == "tree" else DraftPolicy(),
        wrote=tree.wrote,
        short_length=short_length,
        clock=clock,
        head=algorithm if algorithm in HEADS else "",
        sibling_rows=siblings,
    )


def _sibling_rows(config: EngineConfig, cache: RadixCache) -> range:
    """Rows of the request table for drafts' siblings: none where a token has more than its slot
    (a window's, a state's, a head's rows), where slots come in pages, or where other ranks compute.
    """
    headed = config.speculative_algorithm in HEADS
    plain = not (cache.components or headed) and cache.page_size == config.tp_size == 1
    first = config.request_rows
    return range(first, first + MOST_SIBLINGS * plain)


def make_core(
    config: EngineConfig,
    cache: RadixCache,
    runner: Runner,
    tokenizer: Tokenizer | None,
    *,
    masks: MaskFiller | None = None,
    tiering: MakeTiering | None = None,
    clock: Clock | None = None,
    limits: Limits | None = None,
    pooled: PooledStates | None = None,
    launch: Launch | None = None,
) -> EngineCore:
    """See EngineCore. tiering: makes it, where there is a place beside the pool. limits: the
    model's.
    """
    journal = Journal()
    order = make_order(config.schedule_policy, config.schedule_seed)
    room = WaitingRoom(cache, order, config.max_wait_admissions)
    tiers = None if tiering is None else tiering(cache, room)
    scheduler = Scheduler(
        room,
        chunked_prefill_size=config.chunked_prefill_size,
        max_running_requests=config.max_running_requests,
        schedule_conservativeness=config.schedule_conservativeness,
        preemption_threshold=config.priority_scheduling_preemption_threshold,
        tiers=tiers,
        short_length=None if limits is None else limits.short_length,
        checkpoint_interval=config.state_checkpoint_interval,
        drafting=_drafting(config, cache, tokenizer, limits, clock),
        sink=journal.note,
        clock=clock,
    )
    return EngineCore(
        scheduler,
        cache,
        runner,
        tokenizer,
        masks=masks,
        jump_forward=not config.disable_jump_forward,
        journal=journal,
        tiering=tiers,
        pooled=pooled,
        launch=launch if tiers is None else None,  # what they read and write waits for no step
    )
