"""Servers with weights in 8 and 4 bits beside llama.cpp's with the same weights.

    python -m benchmarks.quantized_served --llama-python PATH --llama-server PATH
        [--shape smollm-135m] [--formats int8,int4] [--only W1,W6] [--json FILE]

Starts a server for each format of ours and each of llama.cpp's types with as many bits, and sends
both the same requests (`benchmarks.peers`), one server at a time: W1, 64 readers of one prefix of
1,000 tokens, and W6, 16 streams that share nothing. llama.cpp has 16 slots, its prefixes are reused
within a slot, and it chooses flash attention itself; threads are the same. Ends in one JSON line.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx
import torch

from benchmarks import peers
from benchmarks.served import PATIENCE, serving
from radixlm.bench.quantized_run import PEERS, gguf_file
from radixlm.testing.checkpoints import SHAPES, write_random_checkpoint
from radixlm.testing.ports import free_port

SLOTS, SLOT_TOKENS, BATCH = 16, 1_280, 512
KV_TOKENS = 30_000


@contextmanager
def llama(server: str, path: Path, threads: int) -> Iterator[tuple[str, int]]:
    """llama.cpp's server; gives its URL and process group."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    sizes = {"-np": SLOTS, "-c": SLOTS * SLOT_TOKENS, "-b": BATCH, "-ub": BATCH}
    sizes |= {"-t": threads, "-tb": threads, "--port": port}
    command = [server, "-m", str(path), *(str(item) for pair in sizes.items() for item in pair)]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        deadline = time.monotonic() + PATIENCE
        while not _answers(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"{' '.join(command)}: does not answer, or ended")
            time.sleep(0.1)
        yield url, process.pid
    finally:
        process.kill()
        process.wait()


def _answers(url: str) -> bool:
    try:
        return httpx.get(f"{url}/health", timeout=5).is_success
    except httpx.TransportError:
        return False


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--llama-python", required=True, help="a Python that has llama_cpp")
    parser.add_argument("--llama-server", required=True, help="llama.cpp's program of that name")
    parser.add_argument("--shape", choices=list(SHAPES), default="smollm-135m")
    parser.add_argument("--formats", default="int8,int4")
    parser.add_argument("--only", default="W1,W6")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", metavar="FILE")
    options = parser.parse_args()
    servers: dict[str, tuple[str, int]] = {}
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        place = Path(scratch)
        folder = write_random_checkpoint(options.shape, place / options.shape)
        for name in options.formats.split(","):
            flags = [str(folder), "--dtype", "bfloat16", "--threads", str(options.threads)]
            flags += ["--kv-tokens", str(KV_TOKENS)]
            flags += [] if name == "bf16" else ["--quantization", name]
            ours = stack.enter_context(serving(*flags, launcher=("setsid",)))
            servers[f"ours, {name}"] = ours.url, ours.pid
            for kind, pure in PEERS[name].items():
                path = gguf_file(folder, place, options.llama_python, kind, pure=pure)
                started = llama(options.llama_server, path, options.threads)
                servers[f"llama.cpp, {kind}"] = stack.enter_context(started)
        for name, (url, _) in servers.items():
            print(f"{url} is {name}", flush=True)
        arguments = [*(url for url, _ in servers.values()), "--only", options.only]
        arguments += ["--groups", ",".join(str(group) for _, group in servers.values())]
        arguments += ["--vocab-size", str(SHAPES[options.shape]["vocab_size"])]
        return peers.main([*arguments, *(["--json", options.json] if options.json else [])])


if __name__ == "__main__":
    raise SystemExit(main())
