"""The requests of fuzz/soak.py: who asks what, and what becomes of it, by a seed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from benchmarks.peer_workloads import Draw
from benchmarks.wire import request_bytes
from radixlm.text.tokenizer import Tokenizer

# stays: waits for the whole answer. half: sends half of its body and leaves. early: leaves before
# the answer. amid: leaves amid the answer. abort: is ended by its rid. malformed: must be refused.
Fate = Literal["stays", "half", "early", "amid", "abort", "malformed"]
LEAVING: tuple[Fate, ...] = ("half", "early", "amid", "abort")

ABORTED, MALFORMED = 0.30, 0.05
USERS, SYSTEMS = 240, 6
SYSTEM_TOKENS, OWN_TOKENS = 300, (60, 700)
MOST_OUT = 48
MAX_PROMPT = 4_096

_GENERATING = ("/v1/chat/completions", "/v1/completions", "/generate")
_SMALL = ("/tokenize", "/health", "/metrics")
_SMALL_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class Ask:
    """One request. patience: seconds after which one that leaves, or is aborted, does so.

    rid: the name by which it can be aborted. streams: the answer comes as events.
    """

    path: str
    fate: Fate
    data: bytes
    streams: bool = False
    patience: float = 0.0
    rid: str = ""


class Traffic:
    """Users with a system prompt of a few and a text of their own, on the route they always use;
    what comes after that text is new each time.
    """

    def __init__(self, tokenizer: Tokenizer, seed: int = 0) -> None:
        self._tokenizer = tokenizer
        self._random = random.Random(seed)
        self._draw = Draw(tokenizer.vocab_size, seed)
        systems = [self._draw.tokens(SYSTEM_TOKENS) for _ in range(SYSTEMS)]
        self._users = [
            (_GENERATING[user % 3], systems[user % SYSTEMS], self._own()) for user in range(USERS)
        ]
        self._made = 0

    def working_set(self) -> int:
        """Tokens of all that users come with again and again, what they share counted once."""
        return trie_size([system + own for _, system, own in self._users])

    def next(self) -> Ask:
        """The next request."""
        self._made += 1
        lot = self._random.random()
        if lot < MALFORMED:
            return self._malformed()
        if lot < MALFORMED + ABORTED:
            return self._generating(self._random.choice(LEAVING))
        if self._random.random() < _SMALL_SHARE:
            return self._small()
        return self._generating("stays")

    def _own(self) -> list[int]:
        return self._draw.tokens(self._random.randint(*OWN_TOKENS))

    def _generating(self, fate: Fate) -> Ask:
        path, system, own = self._random.choice(self._users)
        rid = f"soak-{self._made}"
        if fate == "abort":
            path = "/generate"  # the route that lets clients name their requests
        streams = fate == "amid" or self._random.random() < 0.5
        prompt = system + own + self._draw.tokens(self._random.randint(1, 30))
        body = self._body(path, prompt, rid) | {"stream": streams}
        patience = self._random.random() ** 2 * 0.6
        return Ask(path, fate, request_bytes("POST", path, body), streams, patience, rid)

    def _body(self, path: str, prompt: list[int], rid: str) -> dict[str, Any]:
        out = self._random.randint(1, MOST_OUT)
        text = self._tokenizer.decode(prompt)
        if path == "/generate":
            params = {"max_new_tokens": out, "temperature": self._random.choice((0, 1))}
            return {"input_ids": prompt, "rid": rid, "sampling_params": params}
        params = {"max_tokens": out, "n": self._random.choice((1, 1, 1, 2))}
        if path == "/v1/completions":
            return {"prompt": text if self._random.random() < 0.5 else prompt, **params}
        return {"messages": [{"role": "user", "content": text}], **params}

    def _small(self) -> Ask:
        path = self._random.choice(_SMALL)
        if path != "/tokenize":
            return Ask(path, "stays", request_bytes("GET", path))
        text = self._tokenizer.decode(self._own())
        return Ask(path, "stays", request_bytes("POST", path, {"prompt": text}))

    def _malformed(self) -> Ask:
        long = self._draw.tokens(MAX_PROMPT + 1)
        post: list[tuple[str, Any]] = [
            ("/v1/chat/completions", b'{"messages": [{"role": "user", "content": "cut'),
            ("/v1/chat/completions", {"messages": []}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": 7}]}),
            ("/v1/completions", {"prompt": "a", "max_tokens": -1}),
            ("/v1/completions", {"prompt": long}),
            ("/v1/completions", {"prompt": "a", "model": "no-such-model"}),
            ("/v1/completions", {"prompt": [5, 999_999]}),
            ("/generate", {"input_ids": [5], "sampling_params": {"temperature": "hot"}}),
            ("/generate", {"text": "a", "no_such_field": 1}),
            ("/tokenize", b"\xff\xfe\x00"),
            ("/abort_request", {}),
            ("/no/such/route", {"prompt": "a"}),
            ("/health", {"prompt": "a"}),
        ]
        path, body = self._random.choice(post)
        return Ask(path, "malformed", request_bytes("POST", path, body))


def trie_size(keys: Sequence[Sequence[int]]) -> int:
    """Tokens that a tree of these keys holds."""
    size = 0
    before: Sequence[int] = ()
    for key in sorted(list(key) for key in keys):
        size += len(key) - _common(before, key)
        before = key
    return size


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    count = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        count += 1
    return count
