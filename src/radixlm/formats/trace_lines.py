"""Requests as lines of a token-exact trace, which servers write and the simulator reads; see
docs/simulator.md.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from radixlm.core.keys import Key
from radixlm.core.request import Breakpoint, Hint

# In the first line of a trace, which holds no request: the format's version.
HEADER = "radixlm_trace"
VERSION = 1
_U64 = np.uint64
_GOLDEN = _U64(0x9E37_79B9_7F4A_7C15)


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """at: seconds since the trace's begin; None where it goes on from the line before, or nobody
    knows. gap: seconds after the end of that one. namespace, tenant: names that are equal where
    they are the same, and say nothing else. max_tokens: what the request allowed.
    """

    at: float | None
    prompt: Key
    answer: Key
    namespace: str = ""
    tenant: str = ""
    priority: int = 0
    max_tokens: int = 0
    breakpoints: tuple[Breakpoint, ...] = ()
    hint: Hint = Hint.NONE
    gap: float | None = None


def header(*, hashed: bool) -> bytes:
    return json.dumps({HEADER: VERSION, "hashed": hashed}).encode() + b"\n"


def trace_line(request: Recorded) -> bytes:
    """Fields that say nothing are left out."""
    fields: dict[str, Any] = {
        "timestamp": None if request.at is None else round(1_000 * request.at, 3),
        "gap": None if request.gap is None else round(1_000 * request.gap, 3),
        "token_ids": request.prompt.tolist(),
        "output_ids": request.answer.tolist(),
        "max_tokens": request.max_tokens,
        "namespace": request.namespace,
        "tenant": request.tenant,
        "priority": request.priority,
        "hints": _hints(request),
    }
    times = ("timestamp", "gap")
    said = {
        name: value
        for name, value in fields.items()
        if value or (name in times and value is not None)
    }
    return json.dumps(said, separators=(",", ":")).encode() + b"\n"


def _hints(request: Recorded) -> dict[str, Any]:
    hints: dict[str, Any] = {}
    if request.breakpoints:
        hints["breakpoints"] = request.breakpoints
    if request.hint is not Hint.NONE:
        hints["next"] = request.hint
    return hints


class PrefixHasher:
    """Ids that keep what prompts share and hide what they say: each stands for all tokens up to it.

    So two prompts have the same ids exactly as far as they begin alike (but for one chance in 2**31
    at each), and no id says which token is there. It is no encryption: who has the secret can try
    texts. O(tokens), vectorized: about 10 ns a token.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        keys = np.frombuffer(blake2b(secret, digest_size=32).digest(), dtype=_U64)
        self._first, self._second, self._third, self._last = keys

    def prefixes(self, tokens: Key, namespace: str = "") -> npt.NDArray[np.uint64]:
        """(tokens.size,) what stands for all tokens up to each, in 64 bits."""
        places = np.arange(1, tokens.size + 1, dtype=_U64)
        own = _mixed(tokens.astype(_U64) * (self._first | _U64(1)) + self._second)
        placed = _mixed(own ^ _mixed(places * _GOLDEN + self._third))
        begin = int(self.name(namespace) or "0", 16)
        return _mixed((np.cumsum(placed, dtype=_U64) + _U64(begin)) ^ self._last)

    def ids(self, tokens: Key) -> Key:
        """(tokens.size,) from 0 to 2**31 - 1."""
        hashed: Key = (self.prefixes(tokens) >> _U64(33)).astype(np.int32)
        return hashed

    def name(self, text: str) -> str:
        """The same for the same text; "" for none."""
        return (
            blake2b(text.encode(), key=self._secret[:64], digest_size=8).hexdigest() if text else ""
        )


def _mixed(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Every bit of the result depends on every bit (Stafford's variant 13 of MurmurHash3's end)."""
    x = (x ^ (x >> _U64(30))) * _U64(0xBF58_476D_1CE4_E5B9)
    x = (x ^ (x >> _U64(27))) * _U64(0x94D0_49BB_1331_11EB)
    return x ^ (x >> _U64(31))
