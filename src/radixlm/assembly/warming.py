"""The warming of an engine before its first request."""

from __future__ import annotations

from collections.abc import Callable
from concurrent import futures
from functools import partial

import numpy as np

from radixlm.cache import RadixCache
from radixlm.cache.components.states import StateSlots
from radixlm.core.grammar import Grammar
from radixlm.core.sampling import SamplingParams
from radixlm.engine import EngineCore, InputProcessor
from radixlm.engine.input_processor import new_request
from radixlm.structured_output import Compiler

# What warms an engine: pages of its cache; tokens that prompts share, have alone, and are answered.
_PAGES = 64
_SHARED, _OWN, _ANSWER = 10, 6, 3
_ANY_GRAMMAR = Grammar.regex("a")


def warm_up(
    make: Callable[[RadixCache], EngineCore],
    cache: RadixCache,
    processor: InputProcessor,
    grammars: Compiler,
) -> None:
    """Compute what requests do, and compile a grammar beside it, whose process starts by that.
    cache: the one that is to be; one that is thrown away uses some of its slots before.
    """
    begun = grammars.submit(_ANY_GRAMMAR)
    _compute(make(_throwaway_cache(cache)), processor)
    futures.wait([begun])


def _throwaway_cache(cache: RadixCache) -> RadixCache:
    """A small one over the first of the pool's slots, before `cache` itself uses any."""
    windows = None if cache.windows is None else cache.windows.size
    capacity = min(cache.capacity, _PAGES * cache.page_size)
    sizes = [each.capacity for each in cache.components if isinstance(each, StateSlots)]
    states = [partial(StateSlots, size) for size in sizes]
    return RadixCache(capacity, cache.page_size, pin_budget=0, windows=windows, components=states)


def _compute(core: EngineCore, processor: InputProcessor) -> None:
    """Compute what requests do, on the calling thread: a shared prefix, drawn and greedy answers.
    So kernels are loaded, plans made, and the weights read once; some twenty tokens. core: one that
    is thrown away, so that neither statistics nor cache know of it.
    """
    room = processor.limits.longest - _ANSWER
    vocab = processor.limits.vocab_size
    prompt = np.arange(min(_SHARED + _OWN, room), dtype=np.int32) % vocab
    if not prompt.size:
        return  # no request fits that would be worth it
    other = prompt.copy()
    other[_SHARED:] = (other[_SHARED:] + 1) % vocab
    drawn = SamplingParams(max_tokens=_ANSWER, ignore_eos=True, top_p=0.9, seed=0)
    greedy = SamplingParams(max_tokens=_ANSWER, ignore_eos=True, temperature=0)
    core.add(processor.resolve(new_request(prompt, drawn)))
    core.add(processor.resolve(new_request(other, greedy)))
    while core.has_work:
        core.step()
