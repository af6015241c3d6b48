"""OpenVINO GenAI behind `/v1/completions`, just enough of it for benchmarks/peers.py.

    python benchmarks/openvino_server.py FOLDER --port 30002 [--dtype bf16|f32]

Its own model server takes one string as the prompt; its pipeline takes token ids. FOLDER is what
`optimum-cli export openvino` wrote. One thread steps the pipeline and hands out what came; each
connection has a thread of its own. Prompts of ids only, streamed, greedy, `ignore_eos`.
It needs openvino-genai, and nothing of ours.
"""

from __future__ import annotations

import argparse
import itertools
import json
import queue
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np
import openvino as ov
import openvino_genai as genai

_Tokens = queue.SimpleQueue[list[int]]


class Loop:
    """Steps the pipeline while something runs. `ask` is called by other threads."""

    def __init__(self, pipeline: Any) -> None:
        self._pipeline = pipeline
        self._asked: queue.SimpleQueue[tuple[list[int], int, _Tokens]] = queue.SimpleQueue()
        self._ids = itertools.count()
        self._running: list[tuple[Any, _Tokens]] = []
        threading.Thread(target=self._run, daemon=True).start()

    def ask(self, prompt: list[int], out: int) -> _Tokens:
        """Where the new tokens will come."""
        tokens: _Tokens = queue.SimpleQueue()
        self._asked.put((prompt, out, tokens))
        return tokens

    def _run(self) -> None:
        while True:
            while not self._running or not self._asked.empty():
                self._begin(*self._asked.get())
            self._pipeline.step()
            for handle, tokens in self._running:
                while handle.can_read():
                    for output in handle.read().values():
                        tokens.put(list(output.generated_ids))
            over = genai.GenerationStatus.RUNNING
            self._running = [one for one in self._running if one[0].get_status() == over]

    def _begin(self, prompt: list[int], out: int, tokens: _Tokens) -> None:
        config = genai.GenerationConfig()
        config.max_new_tokens = out
        config.ignore_eos = True
        config.do_sample = False
        ids = ov.Tensor(np.array([prompt], dtype=np.int64))
        self._running.append((self._pipeline.add_request(next(self._ids), ids, config), tokens))


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    loop: Loop

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            self._answer(200, {"object": "list", "data": [{"id": "openvino", "object": "model"}]})
        else:
            self._answer(404, {"error": {"message": f"there is no {self.path} here"}})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path != "/v1/completions":
            self._answer(404, {"error": {"message": f"there is no {self.path} here"}})
            return
        ask = json.loads(body)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        tokens, left = self.loop.ask(ask["prompt"], ask["max_tokens"]), ask["max_tokens"]
        while left > 0:
            ids = tokens.get()
            left -= len(ids)
            choice = {"index": 0, "text": "", "token_ids": ids, "finish_reason": None}
            self._event({"choices": [choice]})
        prompt_tokens, out = len(ask["prompt"]), ask["max_tokens"]
        usage = {"prompt_tokens": prompt_tokens, "completion_tokens": out}
        self._event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Say nothing."""

    def _event(self, fields: dict[str, Any]) -> None:
        self.wfile.write(b"data: " + json.dumps(fields).encode() + b"\n\n")
        self.wfile.flush()

    def _answer(self, status: int, fields: dict[str, Any]) -> None:
        text = json.dumps(fields).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)


class Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("folder")
    parser.add_argument("--port", type=int, default=30002)
    parser.add_argument("--dtype", choices=("bf16", "f32"), default="bf16")
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    scheduler = genai.SchedulerConfig()
    scheduler.enable_prefix_caching = True
    scheduler.cache_size = 4
    scheduler.max_num_batched_tokens = 2048
    # By default it would keep keys and values in 8 bits.
    properties = {
        "INFERENCE_PRECISION_HINT": args.dtype,
        "KV_CACHE_PRECISION": args.dtype,
        "INFERENCE_NUM_THREADS": args.threads,
    }
    Handler.loop = Loop(genai.ContinuousBatchingPipeline(args.folder, scheduler, "CPU", properties))
    print(f"http://127.0.0.1:{args.port}", flush=True)
    Server(("127.0.0.1", args.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
