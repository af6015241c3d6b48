"""Prints by how many bytes the most memory of this process grows when it loads an engine.

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
    before = _peak()
    with Engine(folder, kv_tokens=_KV_TOKENS, context_length=_KV_TOKENS, **json.loads(flags)):
        print(_peak() - before)


def _peak() -> int:
    """The peak memory of this process, not by getrusage: there a process begins with the peak of
    the one that started it.
    """
    status = Path("/proc/self/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return 1024 * int(found[1]) if found else 0


if __name__ == "__main__":
    main()
