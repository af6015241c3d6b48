"""Engines without weights, for tests: a fake runner, a byte tokenizer, every check switched on."""

from __future__ import annotations

from functools import cache

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from radixlm.cache import RadixCache
from radixlm.core.config import SchedulePolicy
from radixlm.core.keys import KeyLike, as_key
from radixlm.core.request import Namespace, Request, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.engine import EngineCore, FakeRunner
from radixlm.engine.fake_runner import fingerprints
from radixlm.scheduler import Scheduler, make_order
from radixlm.text.tokenizer import Tokenizer

VOCAB = 256


@cache
def byte_tokenizer() -> Tokenizer:
    """256 tokens, one for each byte."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(
        models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return Tokenizer(backend, {})


class Bench:
    """An engine core over a FakeRunner, with its parts in reach."""

    def __init__(
        self,
        capacity: int = 64,
        *,
        page_size: int = 1,
        policy: SchedulePolicy = "lpm",
        budget: int = 16,
        max_running: int = 8,
        conservativeness: float = 0.0,
        enabled: bool = True,
        vocab_size: int = VOCAB,
    ) -> None:
        self.cache = RadixCache(capacity, page_size, enabled=enabled)
        self.scheduler = Scheduler(
            self.cache,
            make_order(policy),
            chunked_prefill_size=budget,
            max_running_requests=max_running,
            schedule_conservativeness=conservativeness,
        )
        self.runner = FakeRunner(capacity, max_running, vocab_size)
        self.core = EngineCore(self.scheduler, self.cache, self.runner, byte_tokenizer())
        self.vocab_size = vocab_size

    def step(self) -> list[RequestOutput]:
        outputs = self.core.step()
        self.cache.check()
        return outputs

    def run(self, limit: int = 10_000) -> dict[str, RequestOutput]:
        """Step until nothing is left; a request's outputs joined, by id."""
        parts: dict[str, list[RequestOutput]] = {}
        while self.core.has_work:
            assert limit > 0, "the engine does not come to an end"
            limit -= 1
            for output in self.step():
                parts.setdefault(output.request_id, []).append(output)
        return {name: RequestOutput.joined(items) for name, items in parts.items()}

    def expected(self, request: Request) -> list[int]:
        """The tokens the FakeRunner must give, computed without an engine."""
        tokens = request.key.tolist()
        answer: list[int] = []
        while len(answer) < request.max_tokens:
            prints = fingerprints(np.array(tokens, dtype=np.int32), request.namespace)
            token = int(prints[-1]) % self.vocab_size
            tokens.append(token)
            answer.append(token)
            if token in request.stop_token_ids:
                break
        return answer


def make_request(
    name: str,
    key: KeyLike,
    max_tokens: int = 4,
    *,
    params: SamplingParams | None = None,
    stop_token_ids: frozenset[int] = frozenset(),
    namespace: Namespace | None = None,
) -> Request:
    return Request(
        request_id=name,
        key=as_key(key),
        params=params or SamplingParams(max_tokens=max_tokens, temperature=0),
        max_tokens=max_tokens,
        seed=0,
        stop_token_ids=stop_token_ids,
        namespace=namespace or Namespace(),
    )
