"""Prints by how many bytes this process grows when it loads an engine, at most and for good.

    python load_peak.py FOLDER '{"quantization": "int8"}'

What is imported is there before, and the KV pool is as small as can be.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from radixlm.assembly import Engine

_KV_TOKENS = 16


def main() -> None:
    folder, flags = sys.argv[1:]
    before = _memory()
    with Engine(folder, kv_tokens=_KV_TOKENS, context_length=_KV_TOKENS, **json.loads(flags)):
        after = _memory()
    print(*(now - then for now, then in zip(after, before, strict=True)))


def _memory() -> list[int]:
    """The most memory of this process, and what it has now; not by getrusage: there a process
    begins with the peak of the one that started it.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return [1024 * int(size) for size in re.findall(r"(?:VmHWM|VmRSS):\s+(\d+) kB", status)]


if __name__ == "__main__":
    main()
