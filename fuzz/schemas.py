"""Random JSON schemas and regular expressions, each followed by an answer that is then checked.

    python -m fuzz.schemas [--schemas 5000] [--regexes 5000] [--seed 0]

The engine is the product's (scheduler, cache, grammars, jump-forward, text); the model is chance:
of all tokens that a mask allows, one is drawn, as likely by its first byte as by any other, so that
answers come to an end. The vocabulary is the demo model's. An answer must be what its grammar says:
JSON that `jsonschema` finds valid, text that `re` matches whole. Answers that max_tokens cut are
counted apart, and so are grammars that were refused (llguidance lacks a keyword) and dead ends.
At the end no slot may be missing. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from jsonschema import Draft202012Validator
from tqdm import tqdm

from fuzz.random_grammars import Regexes, Schemas
from radixlm.assembly import DEMO_MODEL
from radixlm.cache import RadixCache
from radixlm.core.batch import ScheduledBatch, StepResult
from radixlm.core.errors import InvalidRequestError
from radixlm.core.grammar import Grammar, GrammarKind
from radixlm.core.keys import as_key
from radixlm.core.request import FinishReason, RequestOutput
from radixlm.core.sampling import SamplingParams
from radixlm.engine import EngineCore, InputProcessor, Limits
from radixlm.engine.input_processor import new_request
from radixlm.scheduler import Scheduler, WaitingRoom, make_order
from radixlm.structured_output import Compiler, MaskFiller
from radixlm.text.tokenizer import Tokenizer

MAX_TOKENS = 500
AT_A_TIME = 64
CAPACITY = 65_536


class ChanceRunner:
    """Draws a token that the row's mask allows: its first byte first, then one that begins so. An
    end that is allowed is taken one time in three, else repetitions would have none.
    """

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._draw = np.random.default_rng(seed)
        self._vocab_size = tokenizer.vocab_size
        spelled = map(tokenizer.token_bytes, range(tokenizer.vocab_size))
        self._first = np.array([data[0] if data else 256 for data in spelled])
        self._end = tokenizer.eos_token_id or 0

    def execute(self, batch: ScheduledBatch) -> StepResult:
        tokens: list[int | None] = [None] * len(batch.rows)
        if batch.masks is not None:
            bits = batch.masks.bits.result().view(np.uint8)
            each = np.unpackbits(bits, axis=1, count=self._vocab_size, bitorder="little")
            for place, row in zip(batch.masks.places, each, strict=True):
                tokens[place] = self._one_of(np.flatnonzero(row))
        return StepResult(tuple(tokens))

    def _one_of(self, allowed: npt.NDArray[np.int64]) -> int:
        if self._end in allowed and self._draw.random() < 1 / 3:
            return self._end
        first = self._first[allowed]
        begin = self._draw.choice(np.unique(first))
        return int(self._draw.choice(allowed[first == begin]))


@dataclass
class Tally:
    """What came of the grammars. wrong: a few of the answers that do not follow theirs."""

    counts: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)

    def add(self, grammar: Grammar, output: RequestOutput) -> None:
        match output.finish_reason:
            case FinishReason.LENGTH:
                self.counts["cut"] += 1
            case FinishReason.ERROR:
                self.counts["dead_ends"] += 1
                self.refused[(output.error or "")[:100]] += 1
            case _ if _follows(grammar, output.text):
                self.counts["right"] += 1
            case _:
                self.counts["wrong"] += 1
                self.wrong.append(f"{grammar.text} -> {output.text!r}")


def _follows(grammar: Grammar, text: str) -> bool:
    if grammar.kind is GrammarKind.REGEX:
        return re.fullmatch(grammar.text, text) is not None
    try:
        value = json.loads(text)
    except ValueError:
        return False
    return bool(Draft202012Validator(json.loads(grammar.text)).is_valid(value))


def _grammars(schemas: int, regexes: int, seed: int) -> Iterator[Grammar]:
    draw = random.Random(seed)
    some = Schemas(draw)
    yield from (Grammar.json_schema(some.one()) for _ in range(schemas))
    yield from (Grammar.regex(Regexes(draw).one()) for _ in range(regexes))


class Bench:
    """An engine with a model of chance."""

    def __init__(self, seed: int) -> None:
        tokenizer = Tokenizer.load(DEMO_MODEL)
        vocab_size, eos = tokenizer.vocab_size, frozenset({tokenizer.eos_token_id or 0})
        self.cache = RadixCache(CAPACITY, 1)
        scheduler = Scheduler(
            WaitingRoom(self.cache, make_order("fcfs")),
            chunked_prefill_size=2048,
            max_running_requests=AT_A_TIME,
        )
        self.core = EngineCore(
            scheduler,
            self.cache,
            ChanceRunner(tokenizer, seed),
            tokenizer,
            masks=MaskFiller(vocab_size),
        )
        self.compiler = Compiler(tokenizer, vocab_size=vocab_size, eos_ids=eos)
        limits = Limits(CAPACITY, CAPACITY, vocab_size)
        self._processor = InputProcessor(limits, eos, self.compiler)

    def run(self, grammars: list[Grammar], tally: Tally) -> None:
        """One request for each, AT_A_TIME together."""
        ahead, under_way = grammars[::-1], dict[str, tuple[Grammar, list[RequestOutput]]]()
        with tqdm(total=len(grammars), dynamic_ncols=True) as bar:
            while ahead or under_way:
                while ahead and len(under_way) < AT_A_TIME:
                    self._submit(ahead.pop(), under_way, tally)
                for output in self.core.step():
                    grammar, parts = under_way[output.request_id]
                    parts.append(output)
                    if output.finished:
                        tally.add(grammar, RequestOutput.joined(parts))
                        del under_way[output.request_id]
                bar.update(tally.counts.total() - bar.n)

    def _submit(
        self,
        grammar: Grammar,
        under_way: dict[str, tuple[Grammar, list[RequestOutput]]],
        tally: Tally,
    ) -> None:
        params = SamplingParams(max_tokens=MAX_TOKENS, grammar=grammar)
        try:
            request = self._processor.ready(new_request(as_key([7, 8, 9]), params))
        except InvalidRequestError as error:
            tally.counts["refused"] += 1
            tally.refused[str(error)[:100]] += 1
            return
        under_way[request.request_id] = (grammar, [])
        self.core.add(request)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--schemas", type=int, default=5_000)
    parser.add_argument("--regexes", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    grammars = list(_grammars(options.schemas, options.regexes, options.seed))
    bench, tally = Bench(options.seed), Tally()
    began = time.perf_counter()
    bench.run(grammars, tally)
    seconds = time.perf_counter() - began
    bench.compiler.close()
    usage, stats = bench.cache.usage(), bench.core.stats()
    assert usage.private == usage.locked == stats.leaks == 0
    assert usage.free + usage.evictable == CAPACITY
    for text in tally.wrong[:10]:
        print("wrong:", text)
    for reason, count in tally.refused.most_common(10):
        print(f"{count:6d} {reason}")
    row = {"grammars": len(grammars), **{k: tally.counts[k] for k in _KINDS}}
    print(
        json.dumps(
            {
                "benchmark": "schemas",
                "seed": options.seed,
                **row,
                "output_tokens": stats.output_tokens,
                "steps": stats.steps,
                "seconds": round(seconds, 1),
            }
        )
    )
    assert not tally.counts["wrong"], "an answer does not follow its grammar"


_KINDS = ("right", "wrong", "cut", "dead_ends", "refused")


if __name__ == "__main__":
    main()
