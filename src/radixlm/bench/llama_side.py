"""llama.cpp's side of `radixlm bench quantized`: run by a Python that has llama_cpp, and perhaps
not radixlm. A command per line comes in, a JSON object; a JSON object goes out for each.

    {"do": "quantize", "source": F, "target": F, "kind": "Q4_0", "pure": true}  -> {}
    {"do": "open", "path": F, "threads": 2, "context": 1024}  -> {"flash": bool}; once. "floats":
                                                    true: keys and values in 32 bits, not 16.
                                                    "streams": sequences that fit, of `context` each
    {"do": "decode", "prompt": [...], "out": 96}                -> {"seconds": of a token}
    {"do": "decode_streams", "prompt": [...], "out": 96, "streams": 16}  -> {"seconds": of a token
                                                    of each}
    {"do": "prefill", "prompt": [...]}                          -> {"seconds": of all}
    {"do": "score", "prompt": [...], "first": 257}  -> {"logprobs": of the prompt's, from there on}

Nothing is sampled: the next token is a known one, as in llama-bench. Attention is computed in the
way, flash or not, that decodes and prefills a first prompt faster.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import llama_cpp
import numpy as np

_BATCH = 512
_TRIES = 2
_TRIED_TOKENS = 16


class LlamaModel:
    """The model that is open: a context without flash attention and one with it."""

    def __init__(self) -> None:
        self._model: Any = None
        self._contexts: list[Any] = []

    def quantize(self, source: str, target: str, kind: str, pure: bool) -> dict[str, Any]:
        params = llama_cpp.llama_model_quantize_default_params()
        params.ftype = getattr(llama_cpp, f"LLAMA_FTYPE_MOSTLY_{kind}")
        params.pure = pure
        if llama_cpp.llama_model_quantize(source.encode(), target.encode(), params):
            raise RuntimeError(f"llama.cpp can not quantize {source} to {kind}")
        return {}

    def open(
        self, path: str, threads: int, context: int, *, floats: bool = False, streams: int = 1
    ) -> dict[str, Any]:
        """Load a model, mapped into memory, and see which attention is faster."""
        self.close()
        params = llama_cpp.llama_model_default_params()
        params.use_mmap = True
        self._model = llama_cpp.llama_model_load_from_file(path.encode(), params)
        if not self._model:
            raise RuntimeError(f"llama.cpp can not load {path}")
        sizes = threads, context, streams
        self._contexts = [self._context(*sizes, flash, floats=floats) for flash in (0, 1)]
        taken = [self._seconds(each) for each in self._contexts]
        flash = taken[1] < taken[0]
        llama_cpp.llama_free(self._contexts.pop(not flash))
        return {"flash": bool(flash)}

    def _context(
        self, threads: int, context: int, streams: int, flash: int, *, floats: bool
    ) -> Any:
        params = llama_cpp.llama_context_default_params()
        if floats:
            params.type_k = params.type_v = llama_cpp.GGML_TYPE_F32
        params.n_ctx, params.n_seq_max = context * streams, streams
        params.n_batch = params.n_ubatch = _BATCH
        params.n_threads = params.n_threads_batch = threads
        params.flash_attn_type = flash
        made = llama_cpp.llama_init_from_model(self._model, params)
        if not made:
            raise RuntimeError(f"llama.cpp can not make a context of {context} tokens")
        return made

    def _seconds(self, context: Any) -> float:
        """The seconds of a prefill and some tokens, the least of some tries after one that is not
        counted.
        """
        prompt = list(range(_BATCH // 2))
        times = [
            self._decode(context, prompt, _TRIED_TOKENS) * _TRIED_TOKENS
            + self._prefill(context, prompt)
            for _ in range(_TRIES + 1)
        ]
        return min(times[1:])

    def close(self) -> dict[str, Any]:
        while self._contexts:
            llama_cpp.llama_free(self._contexts.pop())
        if self._model:
            llama_cpp.llama_model_free(self._model)
        self._model = None
        return {}

    def decode(self, prompt: list[int], out: int) -> dict[str, Any]:
        return {"seconds": self._decode(self._contexts[0], prompt, out)}

    def decode_streams(self, prompt: list[int], out: int, streams: int) -> dict[str, Any]:
        """Decode `streams` sequences, of all of which a batch has one token."""
        context, count = self._contexts[0], len(prompt)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        for stream in range(streams):
            _run(context, [(token, at, stream) for at, token in enumerate(prompt)])
        began = time.perf_counter()
        for step in range(out):
            token = prompt[step % count]
            _run(context, [(token, count + step, stream) for stream in range(streams)])
        return {"seconds": (time.perf_counter() - began) / out}

    def prefill(self, prompt: list[int]) -> dict[str, Any]:
        return {"seconds": self._prefill(self._contexts[0], prompt)}

    def score(self, prompt: list[int], first: int) -> dict[str, Any]:
        """The prompt is one batch. first: at least 1."""
        [context], asked = self._contexts, range(first - 1, len(prompt) - 1)
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        _compute(context, prompt, asked)
        words = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(self._model))
        logprobs = []
        for place in asked:
            row = llama_cpp.llama_get_logits_ith(context, place)
            logits = np.ctypeslib.as_array(row, (words,)).astype(np.float64)
            logits -= logits.max()
            logprobs.append(float(logits[prompt[place + 1]] - np.log(np.exp(logits).sum())))
        return {"logprobs": logprobs}

    def _decode(self, context: Any, prompt: list[int], out: int) -> float:
        """Seconds of a token, of `out` after the prompt."""
        self._prefill(context, prompt)
        began = time.perf_counter()
        for token in range(out):
            _compute(context, [prompt[token % len(prompt)]])
        return (time.perf_counter() - began) / out

    def _prefill(self, context: Any, prompt: list[int]) -> float:
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(context), True)
        began = time.perf_counter()
        for start in range(0, len(prompt), _BATCH):
            _compute(context, prompt[start : start + _BATCH])
        return time.perf_counter() - began


def _compute(context: Any, tokens: list[int], asked: Sequence[int] = ()) -> None:
    """Compute tokens; the logits are of those at the places asked, or of the last one."""
    array = (llama_cpp.llama_token * len(tokens))(*tokens)
    batch = llama_cpp.llama_batch_get_one(array, len(tokens))
    if asked:
        batch.logits = (ctypes.c_int8 * len(tokens))(
            *(place in asked for place in range(len(tokens)))
        )
    if code := llama_cpp.llama_decode(context, batch):
        raise RuntimeError(f"llama_decode gave {code}")
    llama_cpp.llama_synchronize(context)


def _run(context: Any, tokens: Sequence[tuple[int, int, int]]) -> None:
    """Compute a batch of (token, position, sequence), with the logits of each sequence's last."""
    batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
    last = {stream: place for place, (_, _, stream) in enumerate(tokens)}
    batch.n_tokens = len(tokens)
    for place, (token, position, stream) in enumerate(tokens):
        batch.token[place], batch.pos[place] = token, position
        batch.n_seq_id[place], batch.seq_id[place][0] = 1, stream
        batch.logits[place] = last[stream] == place
    code = llama_cpp.llama_decode(context, batch)
    llama_cpp.llama_synchronize(context)
    llama_cpp.llama_batch_free(batch)
    if code:
        raise RuntimeError(f"llama_decode gave {code}")


def _say_nothing(_level: int, _text: bytes, _data: object) -> None:
    pass


def main() -> None:
    silent = llama_cpp.llama_log_callback(_say_nothing)  # held, or it would be freed
    llama_cpp.llama_log_set(silent, ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    side = LlamaModel()
    for line in sys.stdin:
        command: dict[str, Any] = json.loads(line)
        method: Callable[..., dict[str, Any]] = getattr(side, command.pop("do"))
        try:
            answer = method(**command)
        except RuntimeError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
