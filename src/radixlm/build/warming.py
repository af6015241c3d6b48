"""What a server's first requests would wait for, done before it says that it is ready."""

from __future__ import annotations

import numpy as np

from radixlm.cache import RadixCache
from radixlm.core.sampling import SamplingParams
from radixlm.engine import EngineCore, InputProcessor
from radixlm.engine.input_processor import new_request

_PAGES = 64
_SHARED, _OWN, _ANSWER = 10, 6, 3


def throwaway_cache(cache: RadixCache, page_size: int) -> RadixCache:
    """A small one over the first of the pool's slots, before `cache` itself uses any."""
    return RadixCache(min(cache.capacity, _PAGES * page_size), page_size, pin_budget=0)


def warm_up(core: EngineCore, processor: InputProcessor) -> None:
    """Compute what requests do, on the calling thread: prompts, a prefix that two share, answers
    that are drawn and greedy. So kernels are loaded, libraries have made their plans, and the
    weights have been read once; some twenty tokens and three steps of two.

    core: one that is thrown away, so that neither the statistics nor the cache know of it.
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
