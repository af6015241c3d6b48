"""Follow a server's KV events with the decoder of vLLM, or of SGLang: a router in small.

    radixlm serve --kv-events-config '{"publisher": "zmq", "replay_endpoint": "tcp://*:5558"}'
    python scripts/follow_kv_events.py --replay tcp://127.0.0.1:5558

It needs pyzmq, msgspec and the decoder's own package, and nothing of RadixLM: run it with the
Python of a vLLM or SGLang installation. It ends after --batches of them, or with Ctrl-C.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import msgspec
import zmq

DECODERS = {
    "vllm": "vllm.distributed.kv_events",
    "sglang": "sglang.srt.disaggregation.kv_events",
}
END = -1
ANSWER_MS = 10_000


def main() -> None:
    args = arguments()
    decode = decoder(args.decoder)
    blocks: set[int | bytes] = set()
    batches = 0
    with suppress(KeyboardInterrupt):
        for number, payload in heard(args.endpoint, args.replay, args.topic):
            batch = decode(payload)
            print(f"batch {number}, {len(payload)} bytes, rank {rank(batch)}")
            for event in batch.events:
                print("  " + taken(event, blocks))
            print(f"  {len(blocks)} blocks are there", flush=True)
            batches += 1
            if batches == args.batches:
                return


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--endpoint", default="tcp://127.0.0.1:5557")
    parser.add_argument("--replay", help="replay_endpoint; with it nothing is missed")
    parser.add_argument("--topic", default="")
    parser.add_argument("--decoder", choices=list(DECODERS), default="vllm")
    parser.add_argument("--batches", type=int, help="end after so many")
    return parser.parse_args()


def decoder(name: str) -> Callable[[bytes], Any]:
    """How this package reads a batch; ends the program where it is not installed."""
    try:
        module = importlib.import_module(DECODERS[name])
    except ImportError as error:
        sys.exit(f"no {DECODERS[name]}: pip install {name} ({error})")
    return msgspec.msgpack.Decoder(module.KVEventBatch).decode


def heard(endpoint: str, replay: str | None, topic: str) -> Iterator[tuple[int, bytes]]:
    """Batches in order; where some are missing, those that are repeated first."""
    with zmq.Context() as context, context.socket(zmq.SUB) as live:
        live.connect(endpoint)
        live.subscribe(topic)
        wanted, last = 0, -1
        while True:
            if replay is not None:
                for number, payload in repeated(context, replay, wanted):
                    yield number, payload
                    wanted = number + 1
            number = wanted
            while number <= wanted or replay is None:
                _, frame, payload = live.recv_multipart()
                number = int.from_bytes(frame, "big")
                if number <= last:  # another server has begun to count
                    wanted = 0
                last = number
                if number == wanted or replay is None:
                    yield number, payload
                    wanted = number + 1


def repeated(context: zmq.Context[Any], replay: str, first: int) -> Iterator[tuple[int, bytes]]:
    """Batches from `first` on, those that were published so far."""
    with context.socket(zmq.DEALER) as asking:
        asking.linger = 0
        asking.connect(replay)
        asking.send_multipart((b"", first.to_bytes(8, "big")))
        while True:
            if not asking.poll(ANSWER_MS):
                sys.exit(f"no answer from {replay}")
            *_, frame, payload = asking.recv_multipart()
            number = int.from_bytes(frame, "big", signed=True)
            if number == END:
                return
            yield number, payload


def rank(batch: Any) -> object:
    """It has another name in SGLang."""
    return getattr(batch, "data_parallel_rank", getattr(batch, "attn_dp_rank", None))


def taken(event: Any, blocks: set[int | bytes]) -> str:
    """Let `blocks` be what they are after an event; the event in a line."""
    kind = type(event).__name__
    if kind == "AllBlocksCleared":
        blocks.clear()
        return kind
    if kind == "BlockRemoved":
        blocks.difference_update(event.block_hashes)
        return f"{kind} {len(event.block_hashes)} blocks, {event.medium}"
    parent = event.parent_block_hash
    if parent is not None and parent not in blocks:
        return f"{kind} behind {parent}, which is not there"
    blocks.update(event.block_hashes)
    return (
        f"{kind} {len(event.block_hashes)} blocks of {event.block_size} behind {parent}, "
        f"{event.medium}, tokens {event.token_ids[:4]}..., "
        f"keys {getattr(event, 'extra_keys', None) or getattr(event, 'cache_salt', None)}"
    )


if __name__ == "__main__":
    main()
